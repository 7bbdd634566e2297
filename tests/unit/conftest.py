"""What the tests of registry clients share."""

from collections.abc import Iterator

import pytest
from registry_server import FakeServer, serving

from cdc_lake.registries import access


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with serving(FakeServer()) as server:
        yield server


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry that lags behind is asked again at once."""
    monkeypatch.setattr(access, "_LAG_WAITS_SECONDS", (0.01, 0.01))
