"""Fixtures of the unit tests."""

import builtins
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from support.one_server import serving
from support.registry_server import FakeServer

from cdc_lake.registries import registry


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with serving(FakeServer()) as server:
        yield server


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make retries after a registry's replication lag immediate."""
    monkeypatch.setattr(registry, "_LAG_WAITS_SECONDS", (0.01, 0.01))


@pytest.fixture
def without_boto3(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without the extra `aws`."""
    real = builtins.__import__

    def absent(name: str, *args: Any, **more: Any) -> Any:
        if name == "boto3":
            raise ModuleNotFoundError("No module named 'boto3'", name="boto3")
        return real(name, *args, **more)

    for name in ("boto3", "cdc_lake.catalogs.glue", "cdc_lake.registries.glue"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(builtins, "__import__", absent)
