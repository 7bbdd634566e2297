"""The lease of a table: one run at a time writes it, and the next one ends before it works.

A lease is a line of numbered files in a folder. The newest says who has the table and until when; having it means to
have created the file of the next number, which only one can. Numbers only go up, so a run that was stopped past its
time finds that it was followed.

How much depends on it differs. Delta on a file system or store that creates a file only once: two runs that both
believe they have the table are told apart at the commit (`cdc_lake.tables.delta`), so the lease only saves work. Delta
on S3: two commits at once would overwrite each other, so the lease is the protection, and the settings refuse to
disable it. Hudi has no check at the commit: the lease is the protection wherever the table is. It does not cover a run
that stands still for longer than `seconds` between its last `check` and its commit.
"""

import logging
import os
import re
import socket
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from py4j.protocol import Py4JError, Py4JJavaError
from pydantic import BaseModel, ConfigDict, ValidationError

from cdc_lake.errors import InfrastructureError, TableLockedError
from cdc_lake.storage.exhausted import exhausted
from cdc_lake.storage.files import Storage

logger = logging.getLogger(__name__)

_FILE = re.compile(r"(\d{12})\.json(\.\w+\.tmp)?")
_RENEWALS = 3
"""A lease is renewed so often in its time: one or two that fail do not lose it."""


class Holder(BaseModel):
    """Who has a table: the content of a lease's file.

    Attributes:
        run_id: the run; empty when the file does not say yet.
        host: where it runs.
        pid: its process there.
        pid_space: the boot and the PID namespace in which `pid` is that process; empty if that is not known.
        since_ms: from when, by its host's clock.
        until_ms: until when, unless it renews the lease; 0 when it has given it back.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    run_id: str = ""
    host: str = ""
    pid: int = 0
    pid_space: str = ""
    since_ms: int
    until_ms: int

    @property
    def is_over(self) -> bool:
        """Whether the table is free: given back, past its time, or the process, which could be seen here, has ended."""
        could_be_seen = self.pid_space and (self.host, self.pid_space) == (socket.gethostname(), _pid_space())
        return self.until_ms <= _now_ms() or (bool(could_be_seen) and not _is_alive(self.pid))

    def __str__(self) -> str:
        who = f"run {self.run_id} (process {self.pid} on {self.host})" if self.run_id else "another run"
        return f"{who}, since {_clock(self.since_ms)}"


class Lease:
    """The right to write one table, as a context: had on entry, renewed by a thread, given back on exit.

    Args:
        storage: of the lake.
        folder: where the table's lease is kept.
        table: the table's name, for messages.
        run_id: who asks.
        seconds: not renewed for so long, the lease is free to take.
    """

    def __init__(self, storage: Storage, folder: str, table: str, run_id: str, seconds: float) -> None:
        self._storage = storage
        self._folder = folder
        self._table = table
        self._run_id = run_id
        self._seconds = seconds
        self._since_ms = 0
        self._number = 0
        self._ended = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name=f"lease of {table}", daemon=True)

    def __enter__(self) -> "Lease":
        """Take the table.

        Raises:
            TableLockedError: another run has it.
            InfrastructureError: the lease cannot be read or written.
        """
        try:
            self._take()
        except (OSError, Py4JError) as exc:
            raise exhausted(self._table, exc, self._folder) or InfrastructureError(
                self._table,
                f"its lease cannot be taken: {_said(exc)}",
                f"see that {self._folder} can be read and written, and run again",
            ) from exc
        self._keeper.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Give the table back."""
        self._ended.set()
        self._keeper.join()
        try:
            if not self._is_followed():
                self._storage.replace(self._file(self._number), self._text(is_over=True))
        except (OSError, Py4JError) as exc:
            logger.warning("%s: its lease could not be given back (%s); it ends by itself", self._table, _said(exc))

    def holder(self) -> Holder | None:
        """Who has the table now, if anybody has. Nothing is taken."""
        holder = self._newest()[1]
        return None if holder is None or holder.is_over else holder

    def check(self) -> None:
        """See that the table is still this run's; to be called right before each commit.

        Raises:
            TableLockedError: another run has taken it.
        """
        if self._is_followed():
            raise TableLockedError(
                self._table,
                f"{self._newest()[1]}, has taken the table over: this run had not renewed its lease in time",
                "nothing of this batch was written; run again once the other has ended",
            )

    def _take(self) -> None:
        newest, holder = self._newest()
        if holder and not holder.is_over:
            raise self._taken_by(holder)
        self._number, self._since_ms = newest + 1, _now_ms()
        # Whoever looked long ago may create a number that was there and is removed: the newest one never is.
        if not self._storage.create_exclusively(self._file(self._number), self._text()) or self._is_followed():
            raise self._taken_by(self._newest()[1])
        self._remove_older()
        if holder and holder.until_ms:
            logger.warning("%s: its lease was left behind by %s, and is taken over", self._table, holder)

    def _keep(self) -> None:
        while not self._ended.wait(self._seconds / _RENEWALS):
            try:
                if self._is_followed():
                    return
                self._storage.replace(self._file(self._number), self._text())
            except (OSError, Py4JError) as exc:
                logger.warning("%s: its lease could not be renewed (%s); tried again", self._table, _said(exc))

    def _is_followed(self) -> bool:
        return self._newest_number() > self._number

    def _newest(self) -> tuple[int, Holder | None]:
        """The newest number and its holder; 0 and none when nobody ever had the table."""
        number = self._newest_number()
        if not number:
            return 0, None
        file = self._file(number)
        try:
            return number, Holder.model_validate_json(self._storage.first_line(file) or "")
        except ValidationError:
            modified_ms = self._storage.modified_ms(file)
        if modified_ms is None:  # just now followed, and removed
            return self._newest()
        # Just being written; if its writer died of that, the time runs from there.
        return number, Holder(since_ms=modified_ms, until_ms=modified_ms + int(self._seconds * 1000))

    def _remove_older(self) -> None:
        for name, number in self._files().items():
            if number < self._number:
                self._storage.remove(f"{self._folder}/{name}")

    def _newest_number(self) -> int:
        return max((number for name, number in self._files().items() if name.endswith(".json")), default=0)

    def _files(self) -> dict[str, int]:
        """The files there are and their numbers, those included that a run died in the middle of."""
        found = (_FILE.fullmatch(name) for name in self._storage.names_with_drafts(self._folder))
        return {file[0]: int(file[1]) for file in found if file}

    def _file(self, number: int) -> str:
        return f"{self._folder}/{number:012d}.json"

    def _text(self, *, is_over: bool = False) -> str:
        until_ms = 0 if is_over else _now_ms() + int(self._seconds * 1000)
        return Holder(
            run_id=self._run_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            pid_space=_pid_space(),
            since_ms=self._since_ms,
            until_ms=until_ms,
        ).model_dump_json()

    def _taken_by(self, holder: Holder | None) -> TableLockedError:
        until = f"; its lease lasts until {_clock(holder.until_ms)} unless renewed" if holder else ""
        return TableLockedError(
            self._table,
            f"it is being written by {holder or 'another run'}{until}",
            "nothing was done: run again once that run has ended, or its lease if it died without a word",
        )


def _said(error: Exception) -> str:
    said = error.java_exception.toString() if isinstance(error, Py4JJavaError) else str(error)
    return str(said).strip().splitlines()[0]


def _pid_space() -> str:
    """Where this process' PIDs count. Containers may share a host's name, machines the number of a namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _clock(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"
