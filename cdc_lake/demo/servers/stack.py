"""Start, inspect and stop the embedded servers."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from cdc_lake.config import endpoints_file
from cdc_lake.demo.servers.jvm_servers import Metastore
from cdc_lake.demo.servers.keeper import ALREADY_RUNNING, ServerRecord, ServerState, forget_record, is_kept, read_record
from cdc_lake.demo.servers.server import tail
from cdc_lake.errors import ConfigError, InfrastructureError
from cdc_lake.spark.jars import EMBEDDED_PROFILE, cache_folder, lock_file, read_lock, require
from cdc_lake.spark.java import find_java

_START_SECONDS = 300.0
_STOP_SECONDS = 20.0
_POLL_SECONDS = 0.05
_KEEPERS: dict[Path, subprocess.Popen[bytes]] = {}
"""The keepers that this process started, by folder. Python warns of child processes that nothing waited for."""


@dataclass(frozen=True)
class ServerStatus:
    """The status of a server.

    Args:
        rss_bytes: resident memory of its processes; shared pages count for each.
    """

    name: str
    state: ServerState
    pid: int | None
    address: str
    rss_bytes: int
    note: str


class Stack:
    """The servers whose data, logs and addresses are in a folder.

    A keeper process owns the servers, so several objects may refer to the same folder.

    Args:
        folder: created if necessary. Its data is kept when the servers are stopped.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._leash: int | None = None

    @property
    def endpoints(self) -> dict[str, str]:
        """The addresses of `postgres` (a libpq URL with its password), `kafka` (host:port), `registry` and `connect`
        (URLs), and of `metastore` if there is one.

        Raises:
            InfrastructureError: the servers are not running.
        """
        file = endpoints_file(self.folder)
        if not file.is_file() or not is_kept(self.folder):
            raise InfrastructureError(str(self.folder), "its servers are not running", "run `cdc-lake stack up`")
        addresses: dict[str, str] = json.loads(file.read_text(encoding="utf-8"))
        return addresses

    def start(self, *, detach: bool, metastore: bool = False) -> None:
        """Start the servers, unless they are running, and return when all are ready.

        Args:
            detach: keep them running when this process ends; otherwise they end with it.
            metastore: also start a Hive metastore.

        Raises:
            ConfigError: they are running, without the metastore that is asked for.
            InstallationError: a jar or Java is missing.
            InfrastructureError: a server does not start; with the end of its log. The other servers are stopped.
        """
        find_java()
        require(read_lock(lock_file(EMBEDDED_PROFILE)), cache_folder())
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.folder / "logs").mkdir(exist_ok=True)
        if is_kept(self.folder):
            self._await_start(None)
            if metastore and Metastore.name not in self.endpoints:
                cure = "run `cdc-lake stack down`, then this again"
                raise ConfigError(str(self.folder), "the servers are running without a metastore", cure)
            return
        forget_record(self.folder)
        endpoints_file(self.folder).unlink(missing_ok=True)
        keeper = self._spawn_keeper(*([Metastore.name] if metastore else []))
        try:
            self._await_start(keeper)
        except BaseException:
            self.stop()
            raise
        if detach:
            self.detach()

    def detach(self) -> None:
        """Keep the servers that this object started running when this process ends."""
        if self._leash is not None:
            os.write(self._leash, b"d")
            self._close_leash()

    def stop(self) -> None:
        """Stop the servers, and kill those that do not stop in time. Their data is kept."""
        record = read_record(self.folder)
        deadline = time.monotonic() + _STOP_SECONDS
        self._close_leash()
        while is_kept(self.folder):
            is_overdue = time.monotonic() > deadline
            record = record or read_record(self.folder)
            if record:
                _signal(record.keeper, signal.SIGKILL if is_overdue else signal.SIGTERM)
            elif is_overdue:
                raise InfrastructureError(str(self.folder), "cannot find its keeper process", "kill it by hand")
            time.sleep(_POLL_SECONDS)
        endpoints_file(self.folder).unlink(missing_ok=True)
        if keeper := _KEEPERS.pop(self.folder, None):
            keeper.wait()  # it has ended, or is about to: it has released the folder's lock

    def delete(self) -> None:
        """Stop the servers and delete their data."""
        self.stop()
        postgres = self.folder / "postgres"
        if postgres.is_symlink():  # for root, in a folder that an unprivileged user can access
            shutil.rmtree(postgres.readlink(), ignore_errors=True)  # does not follow links that other users created
        shutil.rmtree(self.folder, ignore_errors=True)

    def status(self) -> list[ServerStatus]:
        """The status of each server; empty if they have never been started here."""
        record = read_record(self.folder)
        if record is None:
            return []
        kept = is_kept(self.folder)
        return [_status(server, kept) for server in record.servers]

    def _spawn_keeper(self, *more: str) -> subprocess.Popen[bytes]:
        leash, self._leash = os.pipe()
        with (self.folder / "logs" / "keeper.log").open("ab") as log:
            keeper = subprocess.Popen(
                [sys.executable, "-m", "cdc_lake.demo.servers.keeper", str(self.folder), *more],
                stdin=leash,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in a terminal goes to the caller, which then stops the keeper
            )
        os.close(leash)
        _KEEPERS[self.folder] = keeper
        return keeper

    def _await_start(self, keeper: subprocess.Popen[bytes] | None) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not endpoints_file(self.folder).is_file():
            ended = keeper.poll() not in (None, ALREADY_RUNNING) if keeper else not is_kept(self.folder)
            if ended:
                raise self._failure()
            if time.monotonic() > deadline:
                raise InfrastructureError(
                    str(self.folder), f"the servers are not ready after {_START_SECONDS:.0f} s", "see the logs there"
                )
            time.sleep(_POLL_SECONDS)

    def _failure(self) -> InfrastructureError:
        record = read_record(self.folder)
        if record and record.failure:
            return InfrastructureError(*record.failure)
        log = self.folder / "logs" / "keeper.log"
        return InfrastructureError(
            str(self.folder), "the servers were stopped during the start", f"{log} ends with\n{tail(log)}"
        )

    def _close_leash(self) -> None:
        if self._leash is not None:
            os.close(self._leash)
            self._leash = None


def _status(server: ServerRecord, kept: bool) -> ServerStatus:
    process = _process(server.pid) if kept else None
    state: ServerState = server.state if process else "died" if kept and server.pid else "stopped"
    pid = process.pid if process else None
    return ServerStatus(server.name, state, pid, server.address, rss_bytes(process), server.note)


def _process(pid: int | None) -> psutil.Process | None:
    try:
        process = psutil.Process(pid) if pid else None
        return process if process and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def rss_bytes(process: psutil.Process | None) -> int:
    """The resident memory of a process and its descendants; ended ones count 0."""
    total = 0
    for part in [process, *process.children(recursive=True)] if process else []:
        with suppress(psutil.NoSuchProcess):
            total += part.memory_info().rss
    return total


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
