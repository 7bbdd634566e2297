"""The state of a stack, which its keeper writes to a file."""

import fcntl
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Literal, NamedTuple

ServerState = Literal["stopped", "starting", "running", "died"]


class Failure(NamedTuple):
    """The three parts of an error in the keeper."""

    where: str
    what: str
    todo: str


@dataclass(frozen=True)
class ServerRecord:
    """The state of a server."""

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
    """Remove the state of an earlier keeper."""
    _state_file(folder).unlink(missing_ok=True)


def take_lock(folder: Path) -> IO[str] | None:
    """Take the lock that a keeper holds while it runs; none if another keeper holds it."""
    lock = (folder / "keeper.lock").open("a", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def is_kept(folder: Path) -> bool:
    """Whether a keeper is running."""
    if not folder.is_dir():
        return False
    lock = take_lock(folder)
    if lock is None:
        return True
    lock.close()
    return False


def write_json(file: Path, content: object) -> None:
    """Write a file atomically."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    draft.touch(mode=0o600)  # addresses contain a password
    draft.write_text(json.dumps(content, indent=1), encoding="utf-8")
    draft.replace(file)


def _state_file(folder: Path) -> Path:
    return folder / "stack.json"
