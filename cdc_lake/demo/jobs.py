"""Submit the demo's jobs with spark-submit: on this machine, or on any other Spark."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, Final

import yaml

from cdc_lake.config import PACKAGE, TABLE_TYPES, TableType
from cdc_lake.demo.servers.server import end_with_this_process
from cdc_lake.demo.servers.stack import Stack
from cdc_lake.errors import CdcLakeError, InfrastructureError
from cdc_lake.spark.java import SHORT_JVM

SMALL_JVM = f"-Dorg.apache.avro.fastread=true {SHORT_JVM}"
"""Java options that halve the start-up time, for jobs with a few thousand rows."""
_SETTINGS: Final = PACKAGE / "conf" / "cdc-lake.yml"
_INTERVAL: Final = "500ms"
"""Time between two runs of a continuous job. A run that finds nothing new takes a few milliseconds."""
_WAIT_SECONDS: Final = 300.0
_STOP_SECONDS: Final = 10.0


@dataclass(frozen=True)
class Platform:
    """A Spark to submit jobs to.

    Attributes:
        command: `spark-submit` with its flags.
        jobs: folder of the jobs' files.
        variables: the jobs' environment, except for the `CDC_LAKE__` variables that the demo sets.
        lake: root of the lake; default: in the demo's folder.
        download: copies a lake elsewhere to a local folder, where the comparison reads it.
        attempts: how often to submit a job that exits with 10 (no response), like a scheduler does.
    """

    command: Sequence[str]
    jobs: Path
    config: Path
    variables: Mapping[str, str]
    lake: str | None = None
    download: Callable[[Path], None] = lambda folder: None
    attempts: int = 1


def this_machine() -> Platform:
    """The Spark of this Python environment."""
    programs = Path(sys.executable).parent
    return Platform(
        command=(str(programs / "spark-submit"), "--conf", f"spark.driver.extraJavaOptions={SMALL_JVM}"),
        jobs=PACKAGE / "jobs",
        config=_SETTINGS,
        variables={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}"},
    )


class Jobs:
    """Submits jobs, each with a spark-submit of its own.

    Attributes:
        seconds: topic or model -> time that jobs have spent on it.
    """

    def __init__(self, platform: Platform, stack: Stack, lake: str, table_type: TableType) -> None:
        self._platform = platform
        self._environment = {
            **platform.variables,
            "CDC_LAKE__STACK__FOLDER": str(stack.folder),
            "CDC_LAKE__LAKE__ROOT": lake,
            "CDC_LAKE__DEFAULTS__STORAGE": json.dumps([_storage(table_type)]),
        }
        self.seconds: dict[str, float] = {}

    def submit(self, layer: str, *flags: str) -> dict[str, Any]:
        """Run a layer's job, and return its report.

        Raises:
            CdcLakeError: the job failed; with its output.
        """
        with TemporaryDirectory() as folder:
            file = Path(folder) / "report.json"
            command = self._command(layer, "--json-file", str(file), *flags)
            for attempts_left in reversed(range(self._platform.attempts)):
                done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
                if done.returncode != InfrastructureError.exit_code or not attempts_left:
                    break
            if done.returncode:
                raise CdcLakeError(
                    f"the {layer} job",
                    f"it ended with exit code {done.returncode}",
                    f"its output:\n{done.stdout}{done.stderr}",
                )
            report: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        self._count_seconds(report)
        return report

    def continuous(self, layer: str, *flags: str) -> "ContinuousJob":
        """A layer's job that runs continuously; a context manager that ends it."""
        command = self._command(layer, "--continuous", "--interval", _INTERVAL, "--json", *flags)
        return ContinuousJob(layer, command, self._environment, self._count_seconds)

    def _command(self, layer: str, *flags: str) -> list[str]:
        job = str(self._platform.jobs / f"{layer}.py")
        return [*self._platform.command, job, "--config", str(self._platform.config), *flags]

    def _count_seconds(self, report: Mapping[str, Any]) -> None:
        for table in report["tables"]:
            spent = sum(table["seconds"].values())
            self.seconds[table["table"]] = self.seconds.get(table["table"], 0.0) + spent


class ContinuousJob:
    """A job that runs until its context ends, or this process does. It starts with the first `wait`.

    Between two waits its JVM is stopped: otherwise it would process the next round in pieces, as they arrive.

    Args:
        command, environment: the process, which prints a report, a line of JSON, for each run that found new data.
        count: called with each report.

    Attributes:
        progress: topic or model -> what it has consumed: records in bronze, batches in silver, commits in gold.
        batches: topic or model -> number of batches that it has committed.
    """

    def __init__(
        self,
        layer: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        count: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._layer, self._command, self._environment, self._count = layer, command, environment, count
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._log: list[str] = []
        self.progress: Counter[str] = Counter()
        self.batches: Counter[str] = Counter()

    def __enter__(self) -> "ContinuousJob":
        return self

    def __exit__(self, *failure: object) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()  # it has nothing more to do, or it failed
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def wait(self, goal: Mapping[str, int]) -> Counter[str]:
        """Wait until the job's progress is `goal`.

        Returns:
            The sums of the reports' `rows` in this time.

        Raises:
            CdcLakeError: a table failed, the job ended, or it takes too long; with its output.
        """
        rows: Counter[str] = Counter()
        deadline = time.monotonic() + _WAIT_SECONDS
        if self._process is None:
            self._process = self._start()
        self._process.send_signal(signal.SIGCONT)
        while any(self.progress[table] < number for table, number in goal.items()):
            try:
                line = self._lines.get(timeout=max(deadline - time.monotonic(), 0))
            except queue.Empty:
                raise self._error(f"it is not done after {_WAIT_SECONDS:.0f} s") from None
            if line is None:
                raise self._error("it ended")
            if not line.startswith('{"run_id"'):
                self._log.append(line)
                continue
            report = json.loads(line)
            self._count(report)
            for table in report["tables"]:
                if table["error"]:
                    raise self._error(f"{table['table']} failed")
                rows.update(table["rows"])
                self.progress[table["table"]] = sum(table["consumed_to"].values())
                self.batches[table["table"]] += table["batches"]
        self._process.send_signal(signal.SIGSTOP)
        return rows

    def _start(self) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=end_with_this_process(signal.SIGKILL),
        )
        threading.Thread(target=self._read, args=(process.stdout,), daemon=True).start()
        return process

    def _read(self, output: IO[str]) -> None:
        """Queue the lines of the output, and None at its end."""
        with output:
            for line in output:
                self._lines.put(line)
        self._lines.put(None)

    def _error(self, what: str) -> CdcLakeError:
        return CdcLakeError(f"the {self._layer} job", what, f"its output:\n{''.join(self._log)}")


def sample_settings(table_type: TableType) -> str:
    """The settings of the demo as YAML. Its servers and its lake are in the file's folder, `stack` and `lake`."""
    settings = yaml.safe_load(_SETTINGS.read_text(encoding="utf-8"))
    settings["lake"], settings["stack"] = {"root": "lake"}, {"folder": "stack"}
    settings["gold"] = {"models": str(_SETTINGS.with_name("gold"))}
    settings["defaults"]["storage"] = [_storage(table_type)]
    return yaml.safe_dump(settings, sort_keys=False)


def _storage(table_type: TableType) -> dict[str, Any]:
    return TABLE_TYPES[table_type].model_dump(mode="json", exclude_none=True)
