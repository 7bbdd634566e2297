"""Points of time travel: valid times and offsets, and the errors of others."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import cdc_lake
from cdc_lake import Offset, SourceTime
from cdc_lake.errors import ConfigError
from cdc_lake.points import iso, milliseconds

pytestmark = pytest.mark.core


@pytest.mark.parametrize(
    "at",
    [
        "2026-11-23T12:00:00.123999Z",
        "2026-11-23T14:00:00.123+02:00",
        datetime(2026, 11, 23, 12, 0, 0, 123_456, tzinfo=UTC),
        datetime(2026, 11, 23, 7, 0, 0, 123_000, tzinfo=timezone(timedelta(hours=-5))),
    ],
)
def test_time_with_a_zone_is_one_moment(at: datetime | str) -> None:
    assert milliseconds(at) == SourceTime(at).ms == 1_795_435_200_123
    assert iso(milliseconds(at)) == "2026-11-23T12:00:00.123Z"


@pytest.mark.parametrize(
    ("at", "what"),
    [
        (datetime(2026, 11, 23), "the time has no time zone"),
        ("2026-11-23T12:00:00", "the time has no time zone"),
        ("yesterday", "'yesterday': invalid time"),
        (1.5, r"1\.5: invalid time"),
    ],
)
def test_invalid_time_is_refused(at: Any, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        milliseconds(at)
    with pytest.raises(ConfigError, match=what):
        SourceTime(at)


@pytest.mark.parametrize("positions", [5, {"0": 5}, {0: "5"}, {0: True}, None])
def test_invalid_offsets_are_refused(positions: Any) -> None:
    with pytest.raises(ConfigError, match=r"write Offset\(\{0: 1234\}\)"):
        Offset(positions)


def test_package_exports_work_after_importing_submodules() -> None:
    from cdc_lake.fold import table_events

    assert table_events.TableEvents
    assert all(callable(getattr(cdc_lake, name)) for name in cdc_lake.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        cdc_lake.nothing  # noqa: B018
