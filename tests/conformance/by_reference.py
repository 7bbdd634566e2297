"""Run logs in the plain Python reference."""

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence

from support import reference

from .log import Arrival, Deletes, Log
from .position import position_of
from .rows import Found, Result, differences, expected_rows, hashable, source_ms

OPS = ("r", "c", "u", "d", "t", "tombstone")
REFUSED = "CDC-204"
"""The code of the only error that the reference knows; it skips logs that stop for another reason."""


def results_by_reference(logs: Sequence[Log], deletes: Deletes) -> Iterator[Result]:
    """The errors of each log that the reference supports."""
    for log in logs:
        if log.stops in (None, REFUSED):
            yield f"{log.log} {deletes}", _lines(log, deletes)


def _lines(log: Log, deletes: Deletes) -> list[str]:
    try:
        found = rows_by_reference(log, deletes)
    except reference.Refused:
        return [] if log.stops else ["the truncate is refused"]
    return [f"must stop with {log.stops}"] if log.stops else differences(log, expected_rows(log, deletes), found)


def rows_by_reference(log: Log, deletes: Deletes) -> dict[Hashable, Found]:
    """The rows that the log produces.

    Raises:
        reference.Refused: the settings refuse a truncate.
    """
    return folded(log, events_of(log), deletes)


def events_of(log: Log) -> list[reference.Event]:
    """The log's events for the reference, in order of arrival, without lost ones."""
    null_means_keep = log.settings.get("null_means_keep", ())
    return [
        _event(log, number, offset, null_means_keep)
        for number, offset in enumerate(log.offsets())
        if not log.events[number].lost
    ]


def folded(log: Log, events: Iterable[reference.Event], deletes: Deletes) -> dict[Hashable, Found]:
    """The rows that some events of the log produce.

    Raises:
        reference.Refused: the settings refuse a truncate.
    """
    settings = dict(log.settings)
    settings["remove_missing"] = settings.pop("remove_missing_after_snapshot", False)
    settings.pop("null_means_keep", None)
    rows = reference.fold(events, list(log.table_columns), deletes=deletes, **settings)
    return {
        key: Found(
            row.values,
            row.deleted,
            row.unavailable,
            row.op,
            row.place[1:],
            row.order and (row.order.position, row.order.ts_ms),
        )
        for key, row in rows.items()
    }


def _event(log: Log, number: int, offset: int, null_means_keep: Collection[str]) -> reference.Event:
    event = log.events[number]
    values = {**dict.fromkeys(log.table_columns), **event.values}
    unsent = {*event.unsent, *(name for name in null_means_keep if values[name] is None)}
    position, domain = position_of(log.connector, event.position)
    key = None if event.op == "t" or event.poison in ("no_key", "null") else hashable(event.key)
    return reference.Event(
        op=event.op,
        key=key,
        values=values | dict.fromkeys(unsent, reference.UNSENT),
        position=position,
        domain=domain,
        ts_ms=source_ms(event.ts),
        snapshot=event.snapshot,
        partition=event.partition,
        offset=offset,
        generation=event.generation,
        kafka_ts=number + 1 if event.kafka_timestamp is None else event.kafka_timestamp,
        moved_to=hashable(event.moved_to),
        moved_from=hashable(event.moved_from),
        status=_status(event),
        key_bytes=(key, event.key_schema),
    )


def _status(event: Arrival) -> str:
    if event.control is not None:
        return "control"
    return "quarantined" if event.poison is not None or event.op not in OPS else "ok"
