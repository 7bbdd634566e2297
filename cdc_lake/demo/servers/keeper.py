"""The process that owns the servers of one stack: `python -m cdc_lake.demo.servers.keeper <folder> [metastore]`.

The servers are its children and end with it, however it ends. It ends on SIGTERM, and when its standard input closes
because the process that started it has ended. A byte on standard input detaches it from that process.

It holds a lock, and writes the state of its servers to a file.
"""

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Literal, NamedTuple

from cdc_lake.config import endpoints_file
from cdc_lake.demo.servers.jvm_servers import Apicurio, Connect, Kafka, Metastore
from cdc_lake.demo.servers.postgres import Postgres
from cdc_lake.demo.servers.server import Server, Site, choose_ports, end_with_this_process, tail, write_json
from cdc_lake.errors import CdcLakeError, InfrastructureError
from cdc_lake.spark.jars import EMBEDDED_PROFILE, cache_folder, lock_file, read_lock
from cdc_lake.spark.java import find_java

ServerState = Literal["stopped", "starting", "running", "died"]

ALREADY_RUNNING = 3
"""Exit code of a keeper if another one is running."""

_READY_TIMEOUT_SECONDS = 120.0
_POLL_SECONDS = 0.1
_STOP_CONNECT_SECONDS = 5.0
_STOP_SECONDS = 7.0
_LAST_SECONDS = 2.0


class Failure(NamedTuple):
    """The three parts of an error in the keeper."""

    where: str
    what: str
    cure: str


@dataclass(frozen=True)
class ServerRecord:
    name: str
    state: ServerState
    pid: int | None
    address: str
    note: str


@dataclass(frozen=True)
class StackRecord:
    """The state of a stack.

    Args:
        keeper: its process id.
        failure: why it could not be started, if so.
    """

    keeper: int
    servers: Sequence[ServerRecord]
    failure: Failure | None = None

    def write(self, folder: Path) -> None:
        """Replace the stored state."""
        write_json(_state_file(folder), asdict(self))


def read_record(folder: Path) -> StackRecord | None:
    """The last state of the keeper, whether it is running or not; none if there is none."""
    try:
        content = json.loads(_state_file(folder).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    failure = content["failure"]
    servers = [ServerRecord(**server) for server in content["servers"]]
    return StackRecord(content["keeper"], servers, Failure(*failure) if failure else None)


def forget_record(folder: Path) -> None:
    _state_file(folder).unlink(missing_ok=True)


def _take_lock(folder: Path) -> IO[str] | None:
    """Take the lock that a keeper holds while it runs; none if another keeper holds it."""
    lock = (folder / "keeper.lock").open("a", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def is_kept(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    lock = _take_lock(folder)
    if lock is None:
        return True
    lock.close()
    return False


@dataclass
class _ManagedServer:
    """A server and its process, once it has been started."""

    server: Server
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    is_ready: bool = False

    @property
    def lives(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def state(self) -> ServerState:
        if self.process is None:
            return "stopped"
        if not self.lives:
            return "died"
        return "running" if self.is_ready else "starting"

    def signal(self, number: signal.Signals) -> None:
        if self.lives and self.process:
            self.process.send_signal(number)


class Keeper:
    """Starts, monitors and stops the servers of a stack.

    Args:
        more: optional servers.
    """

    def __init__(self, site: Site, more: Iterable[Server] = ()) -> None:
        self._site = site
        # The registry first, because it takes longest and needs no preparation.
        servers = (Apicurio(site), Kafka(site), Postgres(site), Connect(site), *more)
        self._kept = {server.name: _ManagedServer(server) for server in servers}
        self._is_leashed = True
        self._stop_requested = False

    def run(self) -> Failure | None:
        """Run the servers until the keeper is stopped.

        Returns:
            Why they could not be started, if so.
        """
        signal.signal(signal.SIGTERM, self._request_stop)
        failure = None
        try:
            self._start()
            self._watch()
        except CdcLakeError as exc:
            failure = Failure(exc.where, exc.what, exc.cure)
        finally:
            endpoints_file(self._site.folder).unlink(missing_ok=True)
            self._stop()
            self._record(failure)
        return failure

    def _start(self) -> None:
        while not all(kept.is_ready for kept in self._kept.values()):
            for kept in self._kept.values():
                if kept.process:
                    self._look_at(kept)
                elif kept.server.after is None or self._kept[kept.server.after].is_ready:
                    self._spawn(kept)
            if self._should_stop():
                return
        addresses = {name: kept.server.address for name, kept in self._kept.items()}
        write_json(endpoints_file(self._site.folder), addresses)

    def _spawn(self, kept: _ManagedServer) -> None:
        server, log = kept.server, self._site.log(kept.server.name)
        log.parent.mkdir(parents=True, exist_ok=True)
        if log.exists():
            log.replace(log.with_name(f"{log.name}.1"))
        try:
            server.prepare()
            with log.open("ab") as out:
                # preexec_fn is safe with one thread; it runs after the change of user, which would reset it.
                kept.process = subprocess.Popen(
                    server.command(),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    cwd="/",
                    preexec_fn=end_with_this_process(server.last_signal),
                    **server.account,
                )
        except (OSError, subprocess.SubprocessError) as exc:
            raise self._start_error(server, f"cannot start it: {exc}") from exc
        kept.started = time.monotonic()
        self._record()

    def _look_at(self, kept: _ManagedServer) -> None:
        if kept.is_ready:
            return
        if kept.process and not kept.lives:
            raise self._start_error(kept.server, f"it ended with code {kept.process.returncode} before it was ready")
        if kept.server.is_ready():
            kept.is_ready = True
            self._record()
        elif time.monotonic() > kept.started + _READY_TIMEOUT_SECONDS:
            raise self._start_error(kept.server, f"it is not ready after {_READY_TIMEOUT_SECONDS:.0f} s")

    def _watch(self) -> None:
        states: list[ServerState] = []
        while not self._should_stop():
            before, states = states, [kept.state for kept in self._kept.values()]
            if states != before:
                self._record()

    def _stop(self) -> None:
        """Stop Connect, then the servers that it uses; kill those that do not stop in time."""
        connect = self._kept["connect"]
        servers = [kept for kept in self._kept.values() if kept is not connect]
        for group, seconds in (([connect], _STOP_CONNECT_SECONDS), (servers, _STOP_SECONDS)):
            for kept in group:
                kept.signal(kept.server.stop_signal)
            _await_end(group, seconds)
            for kept in group:
                kept.signal(kept.server.last_signal)
        _await_end(servers, _LAST_SECONDS)
        for kept in self._kept.values():
            kept.signal(signal.SIGKILL)
            if kept.process:
                kept.process.wait()
            kept.process, kept.is_ready = None, False

    def _should_stop(self) -> bool:
        """Wait a moment, then return whether to stop."""
        if self._is_leashed and select.select([sys.stdin.fileno()], [], [], _POLL_SECONDS)[0]:
            if not os.read(sys.stdin.fileno(), 1):
                return True
            self._is_leashed = False
        elif not self._is_leashed:
            time.sleep(_POLL_SECONDS)
        return self._stop_requested

    def _request_stop(self, *_: object) -> None:
        self._stop_requested = True

    def _start_error(self, server: Server, what: str) -> InfrastructureError:
        log = self._site.log(server.name)
        return InfrastructureError(server.name, what, f"its log {log} ends with\n{tail(log)}")

    def _record(self, failure: Failure | None = None) -> None:
        servers = [
            ServerRecord(
                name, kept.state, kept.process.pid if kept.process else None, kept.server.address, kept.server.note
            )
            for name, kept in self._kept.items()
        ]
        StackRecord(os.getpid(), servers, failure).write(self._site.folder)


def main(folder: Path, *more: str) -> int:
    """Run the stack of `folder`.

    Args:
        more: `metastore`, to run one, too.

    Returns:
        The exit code of the process.
    """
    lock = _take_lock(folder)
    if lock is None:
        return ALREADY_RUNNING
    with lock:
        try:
            jars = read_lock(lock_file(EMBEDDED_PROFILE))
            site = Site(folder, choose_ports(folder), find_java(), jars, cache_folder())
            failure = Keeper(site, [Metastore(site)] if Metastore.name in more else []).run()
        except Exception as exc:
            traceback.print_exc()
            failure = Failure(
                "keeper",
                f"{type(exc).__name__}: {exc}",
                f"this is a bug in cdc_lake; see {folder}/logs",
            )
            StackRecord(os.getpid(), [], failure).write(folder)
    return 1 if failure else 0


def _await_end(group: Iterable[_ManagedServer], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while any(kept.lives for kept in group) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS / 2)


def _state_file(folder: Path) -> Path:
    return folder / "stack.json"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
