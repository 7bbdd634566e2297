"""Places where a run can be told to die, to fail or to wait, to show that it survives that.

    CDC_LAKE_FAILPOINT=silver.after_side:batch=3:kill9,bronze.after_append:pause=5

Each is `point:action` or `point:batch=N:action`. An action is `kill9` (SIGKILL to this process), `raise` (an error,
exit code 1) or `pause=SECONDS`. Nothing happens unless the variable is set; then every run says so.
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
"""Every point, and what it can be narrowed to: `batch` is the commit number of the table that is written."""
_ACTIONS = "kill9, raise, pause=SECONDS"


def check() -> None:
    """Say loudly which failpoints are set; to be called where a run starts.

    Raises:
        ConfigError: the variable names an unknown point, condition or action.
    """
    for failpoint in _set():
        logger.warning("%s is set: this run will %s", VARIABLE, failpoint)


def reach(point: str, **at: int) -> None:
    """Do what the failpoints set for this point say, in their order.

    Args:
        point: one of `POINTS`.
        at: where the run is, by the names of the point's conditions.

    Raises:
        CdcLakeError: the action is `raise`.
    """
    for failpoint in _set():
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
            raise CdcLakeError(self.point, "the failpoint says to fail here", f"unset {VARIABLE} and run again")
        time.sleep(self.seconds)


def _set() -> list[_Failpoint]:
    text = os.environ.get(VARIABLE)
    return [_parsed(one.strip()) for one in text.split(",")] if text else []


def _parsed(text: str) -> _Failpoint:
    point, *conditions, action = text.split(":") if ":" in text else (text, "")
    if point not in POINTS:
        raise _wrong(text, f"there is no failpoint `{point}`", f"the points are {', '.join(POINTS)}")
    return _Failpoint(point, dict(_condition(text, point, one) for one in conditions), *_action(text, action))


def _condition(text: str, point: str, condition: str) -> tuple[str, int]:
    name, _, number = condition.partition("=")
    if name not in POINTS[point] or not number.isdecimal():
        known = ", ".join(f"{name}=N" for name in POINTS[point]) or "none"
        raise _wrong(text, f"`{condition}` is no condition of {point}", f"its conditions are: {known}")
    return name, int(number)


def _action(text: str, action: str) -> tuple[str, float]:
    if action in ("kill9", "raise"):
        return action, 0.0
    name, _, seconds = action.partition("=")
    try:
        if name == "pause" and 0 <= float(seconds) < float("inf"):
            return name, float(seconds)
    except ValueError:
        pass
    raise _wrong(text, f"`{action}` is no action", f"the actions are {_ACTIONS}")


def _wrong(text: str, what: str, todo: str) -> ConfigError:
    return ConfigError(f"{VARIABLE}={text}", what, todo)
