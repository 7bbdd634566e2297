"""Random logs of a connector: one table with many rows, changed at its source and sent to two partitions.

Positions and times grow as commits do; in some logs all changes of a transaction share its position. What is sent again
is a suffix of what was sent before, in that order; snapshot rows show rows as they are; Kafka's timestamps grow in each
partition, with a little skew.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from support.reference import SHARED, UNSENT, Event

COLUMNS = ("n", "body", "tags", "data")
LARGE = ("body", "tags", "data")
START_MS = 1_700_000_000_000
KEYS_OF_A_HISTORY = 4
Block = list[Event]
"""Records that must be adjacent for their key."""


@dataclass
class Log:
    """The records in the order of sending.

    Attributes:
        late: indexes of records that cannot be decoded when they arrive.
        acts: how often each thing happened, by name.
        rows: the table at its source in the end.
    """

    events: list[Event] = field(default_factory=list)
    late: set[int] = field(default_factory=set)
    acts: Counter[str] = field(default_factory=Counter)
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)


def random_log(
    rng: random.Random,
    histories: int,
    *,
    truncates: bool = False,
    losses: bool = False,
    late: float = 0.05,
    breaks_off: bool = True,
) -> Log:
    """The log of a table with this number of independent groups of rows.

    Args:
        truncates: whether the table is truncated now and then.
        losses: whether rows go without a record, and the whole table is read again more often.
        late: the share of records that cannot be decoded when they arrive.
        breaks_off: whether what is sent again may end before it has caught up.
    """
    source = _Source(rng, histories, late=late, breaks_off=breaks_off)
    acts = (
        _ACTS
        | ({_Source.truncate: 1} if truncates else {})
        | ({_Source.lose: 3, _Source.snapshot: 3} if losses else {})
    )
    for act in rng.choices(list(acts), list(acts.values()), k=12 * histories):
        act(source, rng.randrange(histories) * KEYS_OF_A_HISTORY)
    source.log.rows = source.rows
    return source.log


class _Source:
    """The database, its connector, and the topic."""

    def __init__(self, rng: random.Random, histories: int, *, late: float, breaks_off: bool) -> None:
        self.log = Log()
        self.rows: dict[int, dict[str, Any]] = {}
        self._rng = rng
        self._late = late
        self._breaks_off = breaks_off
        self._knows_position = rng.random() < 0.8
        self._shares_position = rng.random() < 0.4
        self._lone_tombstones = 0.5 if rng.random() < 0.3 else 0.0
        self._position, self._ts_ms = rng.randrange(1000, 2000), START_MS
        self._committed = self._position
        self._stream: list[Block] = []
        self._held_back: list[Block] | None = None
        self._partitions = {key: rng.randrange(2) for key in range(histories * KEYS_OF_A_HISTORY)}
        self._offsets = [0, 0]
        self._kafka_ts = [0, 0]
        for key in self._partitions:
            if rng.random() < 0.2:
                self.rows[key] = self._values()

    def change(self, first_key: int) -> None:
        """A row is inserted or updated."""
        self._commit()
        self._change(first_key)

    def transaction(self, first_key: int) -> None:
        """Several changes with one time."""
        self._log("transaction")
        self._commit()
        for _ in range(3):
            self._position += 1
            self._change(first_key)

    def _change(self, first_key: int) -> None:
        key = self._key(first_key)
        before = self.rows.get(key)
        self.rows[key] = {name: self._kept(before, name, value) for name, value in self._values().items()}
        self._log("insert" if before is None else "update")
        self._stream_out([self._event("c" if before is None else "u", key, self._sent(before, self.rows[key]))])

    def delete(self, first_key: int) -> None:
        """A row is deleted: with a tombstone, without one, or with only a tombstone."""
        if (key := self._key(first_key, there=True)) in self.rows:
            self._commit()
            del self.rows[key]
            is_lone = self._rng.random() < self._lone_tombstones
            self._log("lone tombstone" if is_lone else "delete")
            tombstones = [Event("tombstone", key)] * (is_lone or self._rng.random() < 0.8)
            self._stream_out([*([] if is_lone else [self._event("d", key)]), *tombstones])

    def delete_and_insert(self, first_key: int) -> None:
        """A row is deleted and inserted in one transaction."""
        if (key := self._key(first_key, there=True)) in self.rows:
            self._log("delete and insert")
            self._commit()
            self._stream_out([self._event("d", key), Event("tombstone", key)])
            self._position += 1
            self.rows[key] = self._values()
            self._stream_out([self._event("c", key, self.rows[key])])

    def change_key(self, first_key: int) -> None:
        """A row's key is changed; large values are not sent again."""
        old, new = self._key(first_key, there=True), self._key(first_key)
        if old in self.rows and new not in self.rows:
            self._commit(at_least_ms=1)
            self._change_key(old, new)

    def change_key_and_back(self, first_key: int) -> None:
        """A row's key is changed to another and back, maybe again, in one transaction or in several."""
        old, new = self._key(first_key, there=True), self._key(first_key)
        if old in self.rows and new not in self.rows:
            is_one, times = self._rng.random() < 0.5, self._rng.randrange(2, 5)
            self._log("key change and back")
            for number in range(times):
                if is_one and number:
                    self._position += 1
                else:
                    self._commit(at_least_ms=1)
                self._change_key(*((old, new) if number % 2 == 0 else (new, old)))

    def _change_key(self, old: int, new: int) -> None:
        before = self.rows.pop(old)
        self.rows[new] = before | {"n": self._rng.randrange(1000)}
        sent = self._sent(before, self.rows[new])
        self._log("key change")
        self._log("key change with unsent", UNSENT in sent.values())
        gone = [replace(self._event("d", old), moved_to=new), Event("tombstone", old, moved_to=new)]
        come = [replace(self._event("c", new, sent), moved_from=old)]
        for block in (come, gone) if self._partitions[old] != self._partitions[new] else (gone, come):
            self._stream_out(block)

    def snapshot_rows(self, first_key: int) -> None:
        """An incremental snapshot reads some rows; its clock is ahead of commits that it has not read."""
        for key in range(first_key, first_key + KEYS_OF_A_HISTORY):
            if key in self.rows and self._rng.random() < 0.5:
                self._log("incremental row")
                ts_ms = self._ts_ms + self._rng.randrange(5000)
                self._send(Event("r", key, self.rows[key], ts_ms=ts_ms, snapshot="incremental"))

    def snapshot(self, first_key: int) -> None:
        """A snapshot reads the whole table again."""
        keys = list(self.rows)
        self._log("snapshot")
        for place, key in enumerate(keys):
            marker = "last" if key == keys[-1] else "true" if place else "first"
            self._send(self._event("r", key, self.rows[key], snapshot=marker))

    def snapshot_ahead(self, first_key: int) -> None:
        """A blocking snapshot reads rows before the connector sends the last changes that they contain.

        Without positions, that cannot be recognized.
        """
        if not self._knows_position:
            return
        self._log("snapshot ahead")
        self._held_back = []
        changes = (_Source.change, _Source.transaction, _Source.change_key, _Source.delete_and_insert)
        for act in self._rng.choices(changes, k=self._rng.randrange(1, 5)):
            act(self, first_key)
        held_back, self._held_back = self._held_back, None
        for key in range(first_key, first_key + KEYS_OF_A_HISTORY):
            if key in self.rows:
                self._send(self._event("r", key, self.rows[key], snapshot="true"))
        for block in held_back:
            for event in block:
                self._send(event)

    def truncate(self, first_key: int) -> None:
        """The whole table is truncated."""
        self._commit()
        self.rows = {}
        self._log("truncate")
        self._stream_out([self._event("t", None)])

    def lose(self, first_key: int) -> None:
        """A row is deleted without an event."""
        self._log("lost", self.rows.pop(self._key(first_key), None) is not None)

    def send_again(self, first_key: int) -> None:
        """The connector restarts from a position before the last change."""
        if self._stream:
            again = self._stream[-self._rng.randrange(1, 30) :]
            if self._breaks_off and self._rng.random() < 0.3:
                self._log("replay broken off")
                again = again[: self._rng.randrange(1, len(again) + 1)]
            self._log("replay")
            for block in again:
                for event in block:
                    self._send(event)

    def move_partition(self, first_key: int) -> None:
        """The row's later records go to the other partition."""
        self._log("partition moved")
        key = self._key(first_key)
        self._partitions[key] = 1 - self._partitions[key]

    def restore(self, first_key: int) -> None:
        """The database is restored: positions begin again lower, the time continues; old records are not sent again."""
        self._log("log reset", self._knows_position)
        self._position = self._committed = self._rng.randrange(10)
        self._ts_ms += 10_000
        self._stream = []

    def _log(self, act: str, times: int = 1) -> None:
        self.log.acts[act] += times

    def _key(self, first_key: int, *, there: bool = False) -> int:
        keys = range(first_key, first_key + KEYS_OF_A_HISTORY)
        return self._rng.choice([key for key in keys if not there or key in self.rows] or keys)

    def _commit(self, *, at_least_ms: int = 0) -> None:
        self._position += self._rng.randrange(1, 10)
        self._committed = self._position
        self._ts_ms += max(at_least_ms, self._rng.choice((0, 0, 1, 500)))
        if self._knows_position and self._rng.random() < 0.05:
            self._log("clock stepped back")
            self._ts_ms -= 100

    def _values(self) -> dict[str, Any]:
        return {
            "n": self._rng.choice((None, self._rng.randrange(1000))),
            "body": self._rng.choice((None, "", f"text {self._rng.randrange(1000)}")),
            "tags": self._rng.choice((None, [], [None, "a"], [str(self._rng.randrange(1000))])),
            "data": self._rng.choice((None, b"", self._rng.randbytes(3))),
        }

    def _kept(self, before: dict[str, Any] | None, name: str, value: Any) -> Any:
        return before[name] if before is not None and name in LARGE and self._rng.random() < 0.5 else value

    def _sent(self, before: dict[str, Any] | None, values: dict[str, Any]) -> dict[str, Any]:
        unsent = [
            name
            for name in LARGE
            if before is not None and values[name] is not None and before[name] is values[name]
            if self._rng.random() < 0.8
        ]
        self._log("unsent", len(unsent))
        return values | dict.fromkeys(unsent, UNSENT)

    def _event(
        self, op: str, key: int | None, values: dict[str, Any] | None = None, snapshot: str | None = None
    ) -> Event:
        position = (self._committed, SHARED) if self._shares_position else (self._position,)
        position = position if self._knows_position else None
        return Event(op, key, values, position, ts_ms=self._ts_ms, snapshot=snapshot)

    def _stream_out(self, block: Block) -> None:
        self._stream.append(block)
        if self._held_back is not None:
            self._held_back.append(block)
            return
        for event in block:
            self._send(event)

    def _send(self, event: Event) -> None:
        partition = self._rng.randrange(2) if event.key is None else self._partitions[event.key]
        now = max(self._kafka_ts) + self._rng.choice((0, 1, 5))
        self._kafka_ts[partition] = max(self._kafka_ts[partition], now - self._rng.choice((0, 0, 0, 2)))
        if event.op != "tombstone" and self._rng.random() < self._late:
            self.log.late.add(len(self.log.events))
        offset, kafka_ts = self._offsets[partition], self._kafka_ts[partition]
        self.log.events.append(replace(event, partition=partition, offset=offset, kafka_ts=kafka_ts))
        self._offsets[partition] += self._rng.choice((1, 1, 1, 3))


_ACTS: dict[Callable[[_Source, int], None], float] = {
    _Source.change: 40,
    _Source.transaction: 4,
    _Source.delete: 12,
    _Source.delete_and_insert: 4,
    _Source.change_key: 10,
    _Source.change_key_and_back: 2,
    _Source.snapshot_rows: 8,
    _Source.snapshot: 0.5,
    _Source.snapshot_ahead: 1,
    _Source.send_again: 4,
    _Source.move_partition: 6,
    _Source.restore: 0.5,
}


def batches(rng: random.Random, log: Log, count: int) -> list[list[int]]:
    """The log cut at random, as indexes of its events; one partition may be read further than the other."""
    ends = [sorted(rng.randrange(len(log.events) + 1) for _ in range(count - 1)) for _ in range(2)]
    if rng.random() < 0.5:
        ends[1] = ends[0]
    found: list[list[int]] = [[] for _ in range(count)]
    for index, event in enumerate(log.events):
        found[sum(end <= index for end in ends[event.partition])].append(index)
    return [batch for batch in found if batch]


def story(key: int, log: Log, read: Sequence[Sequence[int]]) -> str:
    """All events of a key in a log, in the order of its partitions, with the batch of each."""
    batch = {index: number for number, indexes in enumerate(read, 1) for index in indexes}
    lines = [
        f"batch {batch[index]}{' late' if index in log.late else ''}: {event}"
        for index, event in enumerate(log.events)
        if event.op == "t" or key in (event.key, event.moved_to, event.moved_from)
    ]
    return "\n".join([f"key {key}:", *lines])
