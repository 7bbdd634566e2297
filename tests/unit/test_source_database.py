"""A source database that cannot be read is named, and its address never shown."""

import sys
from pathlib import Path

import pytest
from pydantic import SecretStr
from typer.testing import CliRunner

from cdc_lake.cli.app import app
from cdc_lake.errors import InfrastructureError, InstallationError
from cdc_lake.reconcile.postgres import open_snapshot


@pytest.mark.parametrize(
    "url", ["postgresql://me:hidden@127.0.0.1:1/shop", "postgresql://me:hid@den@nowhere/x", "hidden"]
)
def test_one_that_does_not_answer_is_told_without_its_address(url: str) -> None:
    with (
        pytest.raises(InfrastructureError, match=r"databases\.shop: it cannot be connected to") as caught,
        open_snapshot(SecretStr(url), "databases.shop"),
    ):
        pass

    assert "hid" not in str(caught.value) and caught.value.__suppress_context__
    assert caught.value.exit_code == 10


def test_without_psycopg_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "cdc-lake.yml"
    file.touch()
    for name in [name for name in sys.modules if name.startswith(("cdc_lake.reconcile", "cdc_lake.layers.reconcile"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)

    outcome = CliRunner().invoke(app, ["reconcile", "--table", "t", "--config", str(file)])

    assert isinstance(outcome.exception, InstallationError)
    assert str(outcome.exception) == (
        "reconcile: psycopg is not installed; install cdc_lake with its extra `reconcile`"
    )
