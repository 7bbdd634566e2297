"""A plain Spark: an environment with PySpark and without cdc_lake, alone or as a cluster.

The jobs come only from a package of `make package`.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cdc_lake.demo.jobs import SMALL_JVM, Platform
from cdc_lake.packaging import ENVIRONMENT, UploadPlan, build
from cdc_lake.spark.jars import EXTRACTION_FILTER
from cdc_lake.spark.java import find_java
from support import CHECKOUT

UV = str(Path(sys.executable).with_name("uv"))
LOOPBACK = "127.0.0.1"
_OF_THE_ENGINE = {"_delta_log", ".hoodie"}


@dataclass(frozen=True)
class PlainSpark:
    """The environment, and the package.

    Attributes:
        folder: of both; jobs are started in it, the package's environment unpacked there as `environment`.
    """

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> "PlainSpark":
        """Install PySpark and make a package."""
        made = cls(folder)
        build(made.package, "emr7", progress=lambda text: None)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made.venv)], check=True)
        locked = (CHECKOUT / "requirements" / "local.txt").read_text(encoding="utf-8")
        wanted = [name for name in locked.splitlines() if name.startswith(("pyspark==", "py4j=="))]
        subprocess.run(
            [UV, "pip", "install", "--no-config", "--quiet", "--python", str(made.venv / "bin" / "python")]
            + [name.removesuffix(" \\") for name in wanted],
            env={name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"},
            check=True,
        )
        with tarfile.open(made.package / ENVIRONMENT) as archive:
            archive.extraction_filter = EXTRACTION_FILTER
            archive.extractall(folder / "environment")
        return made

    @property
    def package(self) -> Path:
        return self.folder / "dist" / "emr7"

    @property
    def plan(self) -> UploadPlan:
        return UploadPlan.model_validate_json((self.package / "upload.json").read_text(encoding="utf-8"))

    @property
    def venv(self) -> Path:
        return self.folder / "plain"

    @property
    def home(self) -> Path:
        (found,) = self.venv.glob("lib/python*/site-packages/pyspark")
        return found

    @property
    def variables(self) -> dict[str, str]:
        """The environment of a user of this Spark, whose PATH has no tools of cdc_lake."""
        theirs = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
        path = f"{self.venv / 'bin'}{os.pathsep}/usr/local/bin{os.pathsep}/usr/bin{os.pathsep}/bin"
        java = str(find_java().resolve().parents[1])
        return {
            **theirs,
            "PATH": path,
            "JAVA_HOME": java,
            "SPARK_HOME": str(self.home),
            "SPARK_LOCAL_IP": LOOPBACK,
        }

    def platform(self, master: str, *flags: str, lake: str | None = None, attempts: int = 1) -> Platform:
        """The jobs of the package on this Spark."""
        jars = ",".join(str(self.package / file.path) for file in self.plan.files if file.path.startswith("jars/"))
        here = str(self.folder / "environment" / "bin" / "python")
        # Spark unpacks archives for separate executors only; a local master's executor is the driver itself.
        python = here if master.startswith("local") else "./environment/bin/python"
        return Platform(
            command=(
                *(str(self.home / "bin" / "spark-submit"), "--master", master),
                *("--archives", f"{self.package / ENVIRONMENT}#environment", "--jars", jars),
                *("--conf", f"spark.pyspark.python={python}", "--conf", f"spark.pyspark.driver.python={here}"),
                *("--conf", f"spark.driver.extraJavaOptions={SMALL_JVM}"),
                *("--conf", f"spark.executor.extraJavaOptions={SMALL_JVM}", "--conf", "spark.ui.enabled=false"),
                *flags,
            ),
            jobs=self.package / "jobs",
            config=self.package / "conf" / "cdc-lake.yml",
            variables=self.variables,
            lake=lake,
            attempts=attempts,
        )


@dataclass
class Cluster:
    """Spark standalone: a master and workers of one core, each a process on this machine."""

    spark: PlainSpark
    master: str
    workers: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def add(self) -> None:
        """Start one more worker."""
        place = self.spark.folder / "cluster" / f"worker-{len(self.workers)}"
        own = ("--host", LOOPBACK, "--webui-port", "0", "--cores", "1", "--memory", "1200m")
        self.workers.append(
            _start(self.spark, place, "deploy.worker.Worker", *own, "--work-dir", str(place), self.master)
        )

    def kill(self, number: int) -> None:
        """Kill a worker and its executors."""
        os.killpg(self.workers[number].pid, signal.SIGKILL)
        self.workers[number].wait()


@contextmanager
def cluster(spark: PlainSpark) -> Iterator[Cluster]:
    """A master and two workers that end with the context."""
    logs = spark.folder / "cluster"
    logs.mkdir(exist_ok=True)
    port, page = _free_ports(2)
    master = f"spark://{LOOPBACK}:{port}"
    at = ("--host", LOOPBACK, "--port", str(port), "--webui-port", str(page))
    started = [_start(spark, logs / "master", "deploy.master.Master", *at)]
    found = Cluster(spark, master)
    try:
        found.add()
        found.add()
        _wait_for(f"http://{LOOPBACK}:{page}/json/", '"aliveworkers" : 2', logs)
        yield found
    finally:
        for process in (*started, *found.workers):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(30)


@contextmanager
def losing_a_worker(on: Cluster, silver: Path, *, replaced: bool) -> Iterator[list[str]]:
    """Kill a worker as soon as the first data file of a table exists.

    Args:
        silver: the folder of the tables.
        replaced: start another in its place; else the one that is left does the rest.

    Yields:
        A list with the data files that there were at that moment; empty as long as there was none.
    """
    seen: list[str] = []
    ended = threading.Event()

    def watch() -> None:
        while not seen and not ended.wait(0.05):
            if found := [str(path) for path in silver.rglob("*.parquet") if not _OF_THE_ENGINE & set(path.parts)]:
                on.kill(0)
                if replaced:
                    on.add()
                seen.extend(found)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        ended.set()
        watcher.join()


def _start(spark: PlainSpark, place: Path, main: str, *arguments: str) -> "subprocess.Popen[bytes]":
    place.mkdir(exist_ok=True)
    with (place / "log").open("wb") as log:
        return subprocess.Popen(
            [str(spark.home / "bin" / "spark-class"), f"org.apache.spark.{main}", *arguments],
            env={**spark.variables, "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": SMALL_JVM},
            cwd=place,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _wait_for(url: str, text: str, logs: Path) -> None:
    until = time.monotonic() + 90
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if text in answer.read().decode():
                    return
        except OSError:
            pass
        time.sleep(0.5)
    raise AssertionError("the cluster did not start:\n" + "\n".join(file.read_text() for file in logs.glob("*/log")))


def _free_ports(number: int) -> Sequence[int]:
    sockets = [socket.socket() for _ in range(number)]
    try:
        for one in sockets:
            one.bind((LOOPBACK, 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def remove(folder: Path) -> None:
    """Folders of more than a gigabyte are deleted at once, not later by pytest."""
    shutil.rmtree(folder, ignore_errors=True)
