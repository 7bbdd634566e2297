"""A source database that cannot be read is named, and its URL is never printed."""

import sys
from pathlib import Path

import psycopg
import pytest
from pydantic import SecretStr

from cdc_lake.cli.app import execute
from cdc_lake.errors import InfrastructureError, InstallationError
from cdc_lake.reconcile.sides import open_snapshot

pytestmark = pytest.mark.core


@pytest.mark.parametrize(
    "url", ["postgresql://me:hidden@127.0.0.1:1/shop", "postgresql://me:hid@den@nowhere/x", "hidden"]
)
def test_unreachable_database_error_hides_its_address(url: str) -> None:
    with (
        pytest.raises(InfrastructureError, match=r"databases\.shop: cannot connect") as caught,
        open_snapshot(SecretStr(url), "databases.shop"),
    ):
        pass

    assert "hid" not in str(caught.value) and caught.value.__suppress_context__
    assert caught.value.exit_code == 10


def test_missing_psycopg_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cdc-lake.yml"
    file.touch()
    for name in [
        name for name in sys.modules if name.startswith(("cdc_lake.reconcile", "cdc_lake.operations.reconcile"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)

    with pytest.raises(SystemExit) as exited:
        execute("reconcile", "--table", "t", "--config", str(file))

    assert exited.value.code == InstallationError.exit_code
    assert "psycopg: it is not installed; run `pip install 'cdc-lake[reconcile]'`" in capsys.readouterr().err


TLS = {
    "off this machine": ("postgresql://me:hidden@db.example/shop", {"sslmode": "require"}),
    "one of several": ("postgresql://me@127.0.0.1,db.example/shop", {"sslmode": "require"}),
    "words": ("host=10.0.0.1 user=me", {"sslmode": "require"}),
    "an address behind a name": ("host=localhost hostaddr=10.0.0.1", {"sslmode": "require"}),
    "told otherwise": ("postgresql://me:hidden@db.example/shop?sslmode=disable", {}),
    "more than required": ("postgresql://me:hidden@db.example/shop?sslmode=verify-full", {}),
    "loopback": ("postgresql://me:hidden@127.0.0.1:5432/shop", {}),
    "loopback of IPv6": ("postgresql://me:hidden@[::1]/shop", {}),
    "localhost": ("postgresql://localhost/shop", {}),
    "a socket": ("host=/var/run/postgresql user=me", {}),
    "nowhere": ("user=me", {}),
    "a service": ("service=shop", {}),
}


@pytest.mark.parametrize(("address", "expected"), TLS.values(), ids=TLS)
def test_tls_is_required_for_remote_databases(
    address: str, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PGHOST", "PGHOSTADDR", "PGSSLMODE", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)
    asked: list[dict[str, object]] = []

    def connect(address: str, **options: object) -> None:
        asked.append(options)
        raise psycopg.OperationalError

    monkeypatch.setattr(psycopg, "connect", connect)
    with (
        pytest.raises(InfrastructureError) as caught,
        open_snapshot(SecretStr(address), "databases.shop"),
    ):
        pass

    (options,) = asked
    assert options.pop("connect_timeout")
    assert options == expected
    assert ("TLS is required" in str(caught.value)) is bool(expected)
