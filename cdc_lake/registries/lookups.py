"""Lookups in a registry: their time limit, and retries for replicas that lag."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from cdc_lake.errors import CdcLakeError
from cdc_lake.registries.http_client import BACKOFF_SECONDS

_LAG_WAITS_SECONDS = (0.2, 0.6)
_LAG_PERIOD_SECONDS = 10.0
_REQUESTS_PER_LOOKUP = 3
"""A lookup may take as long as this many requests that all time out."""

T = TypeVar("T")


class RetryPolicy:
    """Limits the time of lookups, and retries those that find nothing: replicas of a registry may lag.

    After lookups that waited and found nothing, others do not wait for some seconds. So a topic full of garbage does
    not delay a run by one wait per unknown id.

    Args:
        unavailable_error: makes the error of a registry that does not respond.
        seconds: time limit of one lookup, with all its requests.
    """

    def __init__(
        self,
        unavailable_error: Callable[[str], CdcLakeError],
        seconds: float,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._unavailable_error = unavailable_error
        self._seconds = seconds
        self._sleep = sleep
        self._waited_at = -_LAG_PERIOD_SECONDS

    def call(self, look_up: Callable[[], T]) -> T:
        """Call `look_up` on a thread of its own, because reads of a server that sends byte by byte never time out.

        Raises:
            InfrastructureError: it takes too long.
        """
        found: Future[T] = Future()

        def wait() -> None:
            try:
                found.set_result(look_up())
            except BaseException as exc:
                found.set_exception(exc)

        threading.Thread(target=wait, daemon=True).start()
        try:
            return found.result(self._seconds)
        except TimeoutError as exc:
            if found.done():
                raise
            raise self._unavailable_error(f"a lookup took more than {self._seconds:g} s") from exc

    def call_until_found(self, look_up: Callable[[], T | None]) -> T | None:
        """Call `look_up`, and again after short waits while it returns none.

        Raises:
            InfrastructureError: see `call`.
        """
        answer = self.call(look_up)
        if answer is not None or time.monotonic() - self._waited_at < _LAG_PERIOD_SECONDS:
            return answer
        for seconds in _LAG_WAITS_SECONDS:
            self._sleep(seconds)
            answer = self.call(look_up)
            if answer is not None:
                return answer
        self._waited_at = time.monotonic()
        return None


def lookup_seconds(timeout_seconds: float, attempts: int) -> float:
    """The time limit of one lookup, from the settings of a request."""
    return _REQUESTS_PER_LOOKUP * attempts * (timeout_seconds + BACKOFF_SECONDS)
