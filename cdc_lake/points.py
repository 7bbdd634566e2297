"""Points in a table's history, as `as_of`, `since` and `until` take them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cdc_lake.errors import ConfigError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class SourceTime:
    """A time of the source: everything that had happened by then, by the source's clock.

    Attributes:
        at: a datetime with a time zone, or ISO 8601 text with one.

    Raises:
        ConfigError: it is not a time, or has no zone.
    """

    at: datetime | str

    def __post_init__(self) -> None:
        milliseconds(self.at)

    @property
    def ms(self) -> int:
        """The time in milliseconds since 1970."""
        return milliseconds(self.at)


@dataclass(frozen=True)
class Offset:
    """Offsets of the topic: all records before them.

    Attributes:
        positions: the next offset to read of every partition, as consumers commit it.

    Raises:
        ConfigError: `positions` is not a mapping of numbers to numbers.
    """

    positions: Mapping[int, int]

    def __post_init__(self) -> None:
        given = self.positions
        if not isinstance(given, Mapping) or not all(type(n) is int for pair in given.items() for n in pair):
            raise ConfigError("Offset", f"{given!r} is not {{partition: next offset}}", "write Offset({0: 1234})")


Point = int | datetime | str | SourceTime | Offset
"""A version number of the table format, a commit time, a source time, or offsets in Kafka."""


def milliseconds(at: datetime | str) -> int:
    """A time in milliseconds since 1970, rounded down.

    Raises:
        ConfigError: `at` is not a time, or has no time zone.
    """
    cure = "write 2026-11-23T12:00:00Z, or a datetime with tzinfo=UTC"
    try:
        moment = at if isinstance(at, datetime) else datetime.fromisoformat(at)
    except (TypeError, ValueError):
        raise ConfigError(repr(at), "invalid time", cure) from None
    if moment.tzinfo is None:
        raise ConfigError(str(at), "the time has no time zone", cure)
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def iso(ms: int) -> str:
    """Milliseconds since 1970 as ISO 8601 text in UTC, which `milliseconds` reads."""
    return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def time_text(ms: float) -> str:
    """Milliseconds since 1970 in messages, for example `2026-11-22 19:25:03Z`."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"
