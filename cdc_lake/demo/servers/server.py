"""The common base of the embedded servers, and their ports, which the next start reuses."""

import ctypes
import json
import os
import random
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypedDict

import requests

from cdc_lake.errors import InfrastructureError
from cdc_lake.spark.jars import Jar, unpack

HOST = "127.0.0.1"
_TAIL_LINES = 20
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
PORTS = ("postgres", "kafka", "kafka_controller", "registry", "connect", "metastore")

_PORT_RANGE = range(20_000, 32_000)
"""Below the kernel's range for outgoing connections, which could take the port of a stopped server."""
_PORT_WAIT_SECONDS = 5.0


@dataclass(frozen=True)
class Site:
    """Folders, ports and programs of a stack's servers.

    Args:
        folder: their data, configuration and logs.
        ports: by the names in `PORTS`.
        java: the java program.
        jars: the embedded profile's, in `cache`.
    """

    folder: Path
    ports: Mapping[str, int]
    java: Path
    jars: Sequence[Jar]
    cache: Path

    def address(self, port: str) -> str:
        """`host:port` of a name in `ports`."""
        return f"{HOST}:{self.ports[port]}"

    def log(self, server: str) -> Path:
        return self.folder / "logs" / f"{server}.log"

    def jar_files(self, part: str) -> list[Path]:
        """The jars of a part of the embedded profile."""
        return [jar.path(self.cache) for jar in self.jars if part in jar.parts]

    def archive(self, part: str) -> Path:
        """The unpacked folder of a part that is an archive."""
        (jar,) = (jar for jar in self.jars if part in jar.parts)
        return unpack(jar, self.cache)

    def jvm(self, heap: str, *options: str) -> list[str]:
        """The beginning of a Java command, tuned for fast starts and little memory instead of throughput."""
        tuning = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true"]
        return [str(self.java), f"-Xmx{heap}", *tuning, *options]

    def jvm_of_part(self, part: str, heap: str, *informative: str) -> list[str]:
        """The beginning of a Java command for a part with log4j; the `informative` loggers log at level INFO."""
        logging = self.write(f"{part}-log4j2.xml", _LOG4J.format("".join(map(_LOGGER.format, informative))))
        classpath = ":".join(map(str, self.jar_files(part)))
        return self.jvm(heap, f"-Dlog4j2.configurationFile={logging}", "-cp", classpath)

    def write(self, name: str, text: str) -> Path:
        file = self.folder / "conf" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    def run(self, server: str, command: Sequence[str], account: "Account | None" = None) -> None:
        """Run a command that prepares a server, with output to the server's log."""
        with self.log(server).open("ab") as log:
            subprocess.run(
                command, check=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", **(account or Account())
            )


class Account(TypedDict, total=False):
    """The user of a process, as arguments of `subprocess.Popen`; empty for the current user."""

    user: int
    group: int
    extra_groups: list[int]


class Server(ABC):
    name: ClassVar[str]
    after: ClassVar[str | None] = None
    """The server that must be ready before this one starts."""
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    last_signal: ClassVar[signal.Signals] = signal.SIGKILL
    """Ends it immediately, in a state that a restart can recover; also sent when the keeper is killed."""

    def __init__(self, site: Site) -> None:
        self.site = site

    @property
    @abstractmethod
    def address(self) -> str:
        """The address for clients."""

    @property
    def account(self) -> Account:
        return Account()

    @property
    def note(self) -> str:
        """A note for its status; usually empty."""
        return ""

    @abstractmethod
    def prepare(self) -> None:
        """Create files that the server needs, before each start."""

    @abstractmethod
    def command(self) -> list[str]:
        """The command that runs the server in the foreground."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether it serves clients. Called a few times per second; it takes at most about a second."""


def end_with_this_process(number: signal.Signals) -> Callable[[], None]:
    """A `preexec_fn` that makes the child get this signal when this process ends, however it ends."""
    parent = os.getpid()

    def bind() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(number))
        if os.getppid() != parent:  # it ended before the line above
            os._exit(1)

    return bind


def answers(url: str) -> bool:
    """Whether a GET succeeds, without a proxy."""
    with requests.Session() as session:
        session.trust_env = False
        try:
            return session.get(url, timeout=1).ok
        except requests.RequestException:
            return False


def tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    return "\n".join(lines[-_TAIL_LINES:]) or "(nothing)"


def properties(values: Mapping[str, object]) -> str:
    """The text of a Java properties file: Latin-1 with backslash escapes."""
    return "".join(f"{key}={_escaped(str(value))}\n" for key, value in values.items())


def _escaped(value: str) -> str:
    return "".join(char if char.isascii() else f"\\u{ord(char):04x}" for char in value.replace("\\", "\\\\"))


_LOGGER = '<Logger name="{}" level="INFO"/>'
_LOG4J = """<Configuration status="WARN">
  <Appenders><Console name="out"><PatternLayout pattern="%d{{HH:mm:ss.SSS}} %p %c{{1}} %m%n"/></Console></Appenders>
  <Loggers><Root level="WARN"><AppenderRef ref="out"/></Root>{}</Loggers>
</Configuration>
"""


def choose_ports(folder: Path) -> dict[str, int]:
    """Free ports for the servers of a stack, if possible those of its last start."""
    file = folder / "ports.json"
    ports: dict[str, int] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    deadline = time.monotonic() + _PORT_WAIT_SECONDS  # servers that were just killed release their ports
    while not all(map(_is_free, ports.values())) and time.monotonic() < deadline:
        time.sleep(0.1)
    chosen: dict[str, int] = {}
    for name in PORTS:
        port = ports.get(name)
        chosen[name] = port if port and _is_free(port) else _any_free(taken={*ports.values(), *chosen.values()})
    write_json(file, chosen)
    return chosen


def _any_free(taken: set[int]) -> int:
    for port in random.sample(_PORT_RANGE, k=1000):
        if port not in taken and _is_free(port):
            return port
    raise InfrastructureError(
        HOST,
        f"no free port between {_PORT_RANGE.start} and {_PORT_RANGE.stop - 1}",
        "stop programs that use them",
    )


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def write_json(file: Path, content: object) -> None:
    """Write a file atomically."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    draft.touch(mode=0o600)  # addresses contain a password
    draft.write_text(json.dumps(content, indent=1), encoding="utf-8")
    draft.replace(file)
