"""The lease of a table: one run at a time writes it; another run ends before it starts work.

A lease is a sequence of numbered files in a folder. The newest file has the holder and the time of expiry. A run takes
the lease by creating the file with the next number, which only one run can do. Numbers only increase, so a run that was
suspended past its expiry notices that another run has taken over.

The protection differs by table format. Delta on a store that creates a file only once: the commit itself detects that
another run has committed first (`cdc_lake.tables.delta`), so the lease only avoids wasted work. Delta on S3: concurrent
commits would overwrite each other, so the lease is the protection, and the settings do not allow to disable it. Hudi
does not check at the commit, so the lease is always the protection, and runs that write a Hudi table are refused
without leases. It does not cover a run that is suspended for longer than `seconds` between its last `check` and its
commit.
"""

import logging
import os
import re
import socket
import threading
import time
from pathlib import Path
from types import TracebackType

from py4j.protocol import Py4JError
from pydantic import BaseModel, ConfigDict, ValidationError

from cdc_lake.errors import InfrastructureError, TableLockedError
from cdc_lake.points import time_text
from cdc_lake.storage.exhaustion import exhaustion_error
from cdc_lake.storage.hadoop import HadoopFiles, message_of

logger = logging.getLogger(__name__)

_FILE = re.compile(r"(\d{12})\.json(\.\w+\.tmp)?")
"""`000000000007.json`, or the draft `000000000007.json.0a1b.tmp` that a killed run left."""
_RENEWALS = 3
"""Renewals per duration of a lease, so that one or two failed renewals do not lose it."""


class Holder(BaseModel):
    """The holder of a lease, as in the lease's file.

    Attributes:
        run_id: the run; empty if the file is not complete yet.
        pid_space: the boot id and PID namespace of `pid`; empty if unknown.
        since_ms: start time on the host's clock.
        until_ms: expiry unless renewed; 0 after release.
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
        """Whether the lease was released or has expired, or its process on this host has ended."""
        is_visible = self.pid_space and (self.host, self.pid_space) == (socket.gethostname(), _pid_space())
        return self.until_ms <= _now_ms() or (bool(is_visible) and not _is_alive(self.pid))

    def __str__(self) -> str:
        who = f"run {self.run_id} (process {self.pid} on {self.host})" if self.run_id else "another run"
        return f"{who}, since {time_text(self.since_ms)}"


class Lease:
    """A table's lease as a context manager: taken on entry, renewed by a thread, released on exit.

    Args:
        seconds: the lease expires if it is not renewed for this long.
    """

    def __init__(self, files: HadoopFiles, folder: str, table: str, run_id: str, seconds: float) -> None:
        self._files = files
        self._folder = folder
        self._table = table
        self._run_id = run_id
        self._seconds = seconds
        self._since_ms = 0
        self._number = 0
        self._ended = threading.Event()
        self._keeper = threading.Thread(target=self._renew, name=f"lease of {table}", daemon=True)

    def __enter__(self) -> "Lease":
        """Take the lease.

        Raises:
            TableLockedError: another run holds it.
            InfrastructureError: the lease cannot be read or written.
        """
        try:
            self._take()
        except (OSError, Py4JError) as exc:
            raise exhaustion_error(self._table, exc, self._folder) or InfrastructureError(
                self._table,
                f"cannot take its lease: {message_of(exc)}",
                f"check that {self._folder} can be read and written, and run again",
            ) from exc
        self._keeper.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._keeper.join()
        try:
            # If another run takes over right after this check, the file below has a lower number and is ignored.
            if not self._is_taken_over():
                self._files.replace(self._file(self._number), self._text(is_over=True))
        except (OSError, Py4JError) as exc:
            logger.warning("%s: cannot release its lease (%s); it will expire", self._table, message_of(exc))

    def holder(self) -> Holder | None:
        """The current holder, if there is one. This does not take the lease."""
        holder = self._newest()[1]
        return None if holder is None or holder.is_over else holder

    def check(self) -> None:
        """Check that this run still holds the lease. Called right before each commit.

        Raises:
            TableLockedError: another run has taken over.
        """
        if self._is_taken_over():
            raise TableLockedError(
                self._table,
                f"{self._newest()[1]}, has taken over the table, because this run did not renew its lease in time",
                "this batch was not committed; run again when the other run has ended",
            )

    def _take(self) -> None:
        newest, holder = self._newest()
        if holder and not holder.is_over:
            raise self._taken_by(holder)
        self._number, self._since_ms = newest + 1, _now_ms()
        # A slow run may create a number that was removed meanwhile; the newest file is never removed.
        # Example: this run listed 1; other runs took 2 and 3, and removed 2. It creates 2, and then sees 3.
        if not self._files.create_exclusively(self._file(self._number), self._text()) or self._is_taken_over():
            raise self._taken_by(self._newest()[1])
        self._remove_older()
        if holder and holder.until_ms:
            logger.warning("%s: taking over the lease that %s did not release", self._table, holder)

    def _renew(self) -> None:
        while not self._ended.wait(self._seconds / _RENEWALS):
            try:
                if self._is_taken_over():
                    return  # `check` fails before the next commit
                self._files.replace(self._file(self._number), self._text())
            except (OSError, Py4JError) as exc:
                logger.warning("%s: cannot renew its lease (%s); retrying", self._table, message_of(exc))

    def _is_taken_over(self) -> bool:
        return self._newest_number() > self._number

    def _newest(self) -> tuple[int, Holder | None]:
        """The newest number and its holder; 0 and None before the first lease."""
        number = self._newest_number()
        if not number:
            return 0, None
        file = self._file(number)
        try:
            return number, Holder.model_validate_json(self._files.first_line(file) or "")
        except ValidationError:
            modified_ms = self._files.modified_ms(file)
        if modified_ms is None:  # another run has just taken over and removed it
            return self._newest()
        # The file is being written: a new or renewed file may be empty for a moment. If its writer dies, the lease
        # expires from its modification time.
        return number, Holder(since_ms=modified_ms, until_ms=modified_ms + int(self._seconds * 1000))

    def _remove_older(self) -> None:
        """Remove the files of earlier leases. If that fails, the next lease removes them; this one is taken already."""
        try:
            for name, number in self._numbers().items():
                if number < self._number:
                    self._files.remove(f"{self._folder}/{name}")
        except (OSError, Py4JError) as exc:
            logger.warning("%s: cannot remove its earlier leases (%s)", self._table, message_of(exc))

    def _newest_number(self) -> int:
        return max((number for name, number in self._numbers().items() if name.endswith(".json")), default=0)

    def _numbers(self) -> dict[str, int]:
        """The numbers of the lease's files, by name, including incomplete files of killed runs."""
        matches = (_FILE.fullmatch(name) for name in self._files.names_with_drafts(self._folder))
        return {file[0]: int(file[1]) for file in matches if file}

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
        until = f"; its lease lasts until {time_text(holder.until_ms)} unless renewed" if holder else ""
        return TableLockedError(
            self._table,
            f"it is being written by {holder or 'another run'}{until}",
            "run again when that run has ended or, if it was killed, when its lease has expired",
        )


def _pid_space() -> str:
    """The scope of this process's PID. Containers may share host names, and hosts may share namespace numbers.

    Example: two containers named `app` both have a process 1, so only the boot and the namespace tell them apart.
    """
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
        pass  # it is alive, and another user's
    return True


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
