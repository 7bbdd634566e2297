"""Time travel to points between the events of logs, compared with the reference's fold of the events up to there."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from support.reference import Event, Place, in_log_order, table_settings

import cdc_lake
from cdc_lake.config import TABLE_TYPES, Config, LakeConfig, TableConfig, TableType
from cdc_lake.errors import TimeTravelError
from cdc_lake.runs.context import lake_of

from .by_lake import Copy, Lake, copies_of, rows_of
from .by_reference import events_of, folded
from .cut import due
from .log import Arrival, Deletes, Log, Shape
from .rows import START_MS, Result, differences

_ENDS = ("last", "last_in_data_collection")


class Told:
    """Logs that were landed and folded, with their rows at any point.

    Args:
        root: the lake's folder, empty.
        is_each: each event is a separate batch; otherwise each log is one batch.
    """

    def __init__(
        self,
        spark: SparkSession,
        root: Path,
        logs: Sequence[Log],
        *,
        table_type: TableType,
        deletes: Deletes,
        shape: Shape,
        is_each: bool = False,
    ) -> None:
        logs = [log for log in logs if shape in log.shapes and not log.stops]
        self._spark = spark
        self._deletes = deletes
        self.copies = list(copies_of(logs, "each" if is_each else "none"))
        self._config = Config(
            lake=LakeConfig(root=str(root)),
            defaults=TableConfig(storage=(TABLE_TYPES[table_type],), deletes={"mode": deletes}),
            tables={
                copy.topic: TableConfig(**table_settings(copy.log.settings))
                for copy in self.copies
                if copy.log.settings
            },
        )
        self._versions: dict[str, list[int]] = {copy.topic: [] for copy in self.copies}
        lake = Lake(spark, self._config, self.copies, shape)
        for number in range(max(len(copy.batches) for copy in self.copies)):
            lake.take_batch(number)
            for topic, found in self._versions.items():
                silver = lake_of(self._config).silver(topic)[0].open(spark)
                found.append(silver.version() if silver.exists() else -1)
        assert not lake.failures

    def points(self) -> Iterator[Result]:
        """All logs."""
        yield from self.commits()
        yield from self.offsets()
        yield from self.source_times()

    def commits(self) -> Iterator[Result]:
        """Every commit of silver, by version."""
        for topic, found in self._versions.items():
            for number, version in enumerate(found):
                if version >= 0:
                    yield from self._compared(topic, version, f"commit {number}", _read_by(number))

    def offsets(self) -> Iterator[Result]:
        """For every number of events of each log: the offsets after them."""
        for topic in self._versions:
            copies = [copy for copy in self.copies if copy.topic == topic]
            for count in range(max(len(copy.log.events) for copy in copies) + 1):
                positions: dict[int, int] = {}
                for copy in copies:
                    positions |= _next_offsets(copy, count)
                point = cdc_lake.Offset(positions)
                yield from self._compared(topic, point, f"{count} events", _before(positions))

    def source_times(self) -> Iterator[Result]:
        """Every source time of the logs, and a millisecond before the first."""
        for topic in self._versions:
            copies = [copy for copy in self.copies if copy.topic == topic]
            of_all = [event for copy in copies for event in _in_log_order(copy)]
            times = {_told_ms(*event) for event in of_all}
            for ms in sorted({*times, min(times) - 1}):
                point = cdc_lake.SourceTime(datetime.fromtimestamp(ms / 1000, UTC))
                is_known = ms >= _known_ms(of_all)
                yield from self._compared(topic, point, f"at {ms - START_MS} ms", _happened_by(ms), is_known=is_known)

    def _compared(
        self, topic: str, point: Any, name: str, part: Callable[[Copy], list[Event]], *, is_known: bool = True
    ) -> Iterator[Result]:
        copies = [copy for copy in self.copies if copy.topic == topic]
        wanted = [folded(copy.log, part(copy), self._deletes) for copy in copies]
        try:
            rows = cdc_lake.read(self._spark, topic, as_of=point, config=self._config).collect()
        except TimeTravelError as exc:
            yield f"{topic} {name}", [str(exc)] if is_known and any(wanted) else []
            return
        if not is_known:
            yield f"{topic} {name}", ["it can be read before the end of the first snapshot"]
            return
        # Columns that no event had brought by then do not exist yet.
        columns = {name for copy in copies for name in copy.log.table_columns}
        found = [dict.fromkeys(columns) | row.asDict(recursive=True) for row in rows]
        for copy, expected in zip(copies, wanted, strict=True):
            yield f"{copy.name} {name}", differences(copy.log, expected, rows_of(copy, found))


def snapshot_of(connector: Any) -> Log:
    """A snapshot of one row before all other logs of a shared table, so that every later time can be read."""
    first = Arrival(op="r", snapshot="last", ts=0, kafka_timestamp=0)
    why = "The table's first snapshot."
    return Log(log=f"snapshot-{connector}", why=why, events=[first], rows=[{"last": 1}], connector=connector)


def _read_by(number: int) -> Callable[[Copy], list[Event]]:
    """The decodable events of the batches up to a number."""

    def part(copy: Copy) -> list[Event]:
        batches = copy.batches[: number + 1]
        indexes = [index for index, event in enumerate(copy.log.events) if not event.lost]
        return [
            event if (due(copy.log, copy.batches, index) or 0) <= number else replace(event, status="quarantined")
            for index, event in zip(indexes, events_of(copy.log), strict=True)
            if index < batches[-1].stop
        ]

    return part


def _next_offsets(copy: Copy, count: int) -> dict[int, int]:
    """By partition of a log: the offset after its first events, in the newest generation."""
    events, offsets = copy.log.events, copy.log.offsets()
    newest = max(event.generation for event in events)
    found = {copy.first_partition + event.partition: 0 for event in events}
    for event, offset in list(zip(events, offsets, strict=True))[:count]:
        if event.generation == newest:
            found[copy.first_partition + event.partition] = offset + 1
    return found


def _before(positions: dict[int, int]) -> Callable[[Copy], list[Event]]:
    def part(copy: Copy) -> list[Event]:
        events = events_of(copy.log)
        newest = max(event.generation for event in events)
        return [
            event
            for event in events
            if event.generation < newest or event.offset < positions[copy.first_partition + event.partition]
        ]

    return part


def _in_log_order(copy: Copy) -> list[tuple[Place, Event]]:
    """A log's events that count, with their positions in the topic."""
    events = in_log_order(events_of(copy.log))
    return [(place._replace(partition=place.partition + copy.first_partition), event) for place, event in events]


def _told_ms(place: Place, event: Event) -> int:
    return START_MS + place.log_ts if event.ts_ms is None else event.ts_ms


def _happened_by(ms: int) -> Callable[[Copy], list[Event]]:
    def part(copy: Copy) -> list[Event]:
        found = []
        for place, event in in_log_order(events_of(copy.log)):
            if _told_ms(place, event) <= ms:
                # Skipped events must not leave a tombstone behind another event than its own.
                found += [replace(event, op="", status="control")] if event.op == "tombstone" else []
                found.append(replace(event, kafka_ts=place.log_ts))
        return found

    return part


def _known_ms(events: Sequence[tuple[Place, Event]]) -> float:
    """The earliest time that can be read: the end of the table's first snapshot."""
    in_order = sorted(
        (pair for pair in events if pair[1].key is not None or pair[1].op == "t"), key=lambda pair: pair[0]
    )
    rows = [pair for pair in in_order if pair[1].op == "r" and pair[1].snapshot != "incremental"]
    ends = [place for place, event in in_order if event.snapshot in _ENDS]
    others = [pair[0] for pair in in_order if pair not in rows]
    end = min(ends or others, default=None)
    if end is None and any(event.snapshot for _, event in rows):
        return float("inf")
    of_snapshot = [_told_ms(*pair) for pair in rows if end is None or pair[0] <= end]
    return max(of_snapshot) if of_snapshot else min(_told_ms(*pair) for pair in in_order)
