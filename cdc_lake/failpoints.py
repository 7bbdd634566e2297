"""Failpoints: points at which tests kill, fail or pause a run to check that it recovers.

    CDC_LAKE_FAILPOINT=silver.after_side:batch=3:kill9,bronze.after_append:pause=5

Each entry is `point:action` or `point:batch=N:action`. An action is `kill9` (SIGKILL to this process), `raise` (an
error, exit code 1) or `pause=SECONDS`. If the variable is set, every run logs a warning.
"""

import logging
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass

from cdc_lake.errors import CdcLakeError, ConfigError

logger = logging.getLogger(__name__)

VARIABLE = "CDC_LAKE_FAILPOINT"
POINTS: Mapping[str, tuple[str, ...]] = {
    "bronze.after_plan": ("batch",),
    "bronze.after_append": ("batch",),
    "bronze.after_send": ("batch",),
    "bronze.before_report": (),
    "silver.after_plan": ("batch",),
    "silver.after_widen": ("batch",),
    "silver.after_side": ("batch",),
    "silver.after_merge": ("batch",),
    "iceberg.after_stage": ("batch",),
    "silver.before_report": (),
    "rebuild.after_compare": (),
    "rebuild.after_side": (),
    "rebuild.after_overwrite": (),
    "rebuild.before_report": (),
    "gold.after_plan": ("batch",),
    "gold.after_overwrite": ("batch",),
    "gold.after_merge": ("batch",),
    "gold.after_send": ("batch",),
    "gold.before_report": (),
}
"""Every point and its conditions; `batch` is the number of the commit that the run is writing."""
_ACTIONS = "kill9, raise, pause=SECONDS"


def check() -> None:
    """Log a warning for each failpoint that is set. Called once when a run starts.

    Raises:
        ConfigError: the variable names an unknown point, condition or action.
    """
    for failpoint in _failpoints():
        logger.warning("%s is set: this run will %s", VARIABLE, failpoint)


def reach(point: str, **at: int) -> None:
    """Run the actions of the failpoints that are set for this point, in order.

    Args:
        at: the run's position, by the names of the point's conditions.

    Raises:
        CdcLakeError: the action is `raise`.
    """
    for failpoint in _failpoints():
        if failpoint.point == point and failpoint.conditions.items() <= at.items():
            logger.warning("%s: %s now (%s)", VARIABLE, failpoint, at)
            failpoint.act()


@dataclass(frozen=True)
class _Failpoint:
    point: str
    conditions: Mapping[str, int]
    action: str
    seconds: float

    def __str__(self) -> str:
        where = " ".join([self.point, *(f"{name} {number}" for name, number in self.conditions.items())])
        return f"{self.action}{f' {self.seconds:g} s' if self.action == 'pause' else ''} at {where}"

    def act(self) -> None:
        if self.action == "kill9":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.action == "raise":
            raise CdcLakeError(self.point, "a failpoint raised this error", f"unset {VARIABLE} and run again")
        time.sleep(self.seconds)


def _failpoints() -> list[_Failpoint]:
    text = os.environ.get(VARIABLE)
    return [_parse(entry.strip()) for entry in text.split(",")] if text else []


def _parse(text: str) -> _Failpoint:
    point, *conditions, action = text.split(":") if ":" in text else (text, "")
    if point not in POINTS:
        raise _invalid(text, f"unknown failpoint `{point}`", f"use one of {', '.join(POINTS)}")
    return _Failpoint(
        point, dict(_parse_condition(text, point, one) for one in conditions), *_parse_action(text, action)
    )


def _parse_condition(text: str, point: str, condition: str) -> tuple[str, int]:
    name, _, number = condition.partition("=")
    if name not in POINTS[point] or not number.isdecimal():
        known = ", ".join(f"{name}=N" for name in POINTS[point]) or "none"
        raise _invalid(text, f"`{condition}` is not a condition of {point}", f"its conditions are: {known}")
    return name, int(number)


def _parse_action(text: str, action: str) -> tuple[str, float]:
    if action in ("kill9", "raise"):
        return action, 0.0
    name, _, seconds = action.partition("=")
    try:
        if name == "pause" and 0 <= float(seconds) < float("inf"):
            return name, float(seconds)
    except ValueError:
        pass
    raise _invalid(text, f"unknown action `{action}`", f"use one of {_ACTIONS}")


def _invalid(text: str, what: str, cure: str) -> ConfigError:
    return ConfigError(f"{VARIABLE}={text}", what, cure)
