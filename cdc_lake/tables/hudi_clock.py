"""The times in Hudi's timeline: a commit's name is the time on the writer's clock, and names order the commits."""

import time
from datetime import UTC, datetime

from cdc_lake.errors import InfrastructureError

MAX_SECONDS_AHEAD = 10.0
"""A write waits if the newest instant is at most this far ahead of this machine's clock."""


def milliseconds(instant: str) -> int:
    """The time of an instant such as `20261122192503833`, which is in UTC, in milliseconds since 1970."""
    moment = datetime.strptime(instant[:14], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1000 + int(instant[14:] or 0)


def time_text(ms: float) -> str:
    """A time in messages, for example `2026-11-22 19:25:03Z`.

    Args:
        ms: milliseconds since 1970.
    """
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"


def wait_until_past(path: str, instant: str) -> None:
    """Wait until this machine's clock is past an instant, because Hudi hides a commit that seems older than another.

    Args:
        path: the table's folder.
        instant: the newest instant of the table.

    Raises:
        InfrastructureError: the instant is too far ahead; the clocks are not synchronized.
    """
    newest_ms, now_ms = milliseconds(instant), time.time() * 1000
    if newest_ms < now_ms:
        return
    if newest_ms - now_ms > MAX_SECONDS_AHEAD * 1000:
        raise InfrastructureError(
            path,
            f"its newest commit is of {time_text(newest_ms)}, but this machine's clock is at {time_text(now_ms)}: Hudi "
            "would hide new commits behind it",
            "synchronize the clocks of all machines that write this table. If they are right, run again after "
            f"{time_text(newest_ms)}",
        )
    time.sleep((newest_ms - now_ms + 1) / 1000)
