"""The events of a kept lake before it is archived: half of every case that silver must remember.

Every archive in tests/fixtures/lakes holds this very story, so it must stay as it is: an archive that is to hold more
needs a story of its own.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from support.events import OPTIONAL_INT, OPTIONAL_STRING, PLACEHOLDER, START_MS, FakeRegistry, Record, Topic
from support.fakes import FakeBroker
from support.setting_groups import patched

from cdc_lake.config import TABLE_TYPES, Config, LakeConfig, TableConfig

Deletes = Literal["hard", "soft"]

DELETES: Final[Sequence[Deletes]] = ("hard", "soft")
COLUMNS: Final = {"n": OPTIONAL_INT, "body": OPTIONAL_STRING}
UNSENT: Final = PLACEHOLDER
"""The placeholder of a `body` that the source did not send."""
POSITIVE: Final = {"name": "positive", "holds": "n > 0", "on_fail": "reject"}
_DAYS: Final = 36_500.0
"""Retention of the side tables, longer than the age of any archive."""


class Table:
    """A topic of the lake and the connector that writes to it.

    Args:
        deletes: silver's setting, which is in the topic's name, too.
        registry: the lake's.
    """

    kind: str
    partitions = 1
    settings: Mapping[str, Any] = {}

    def __init__(self, deletes: Deletes, registry: FakeRegistry) -> None:
        self.deletes: Deletes = deletes
        self.name = f"shop.public.{self.kind}_{deletes}"
        self.topic = Topic(COLUMNS, registry=registry, table=self.name)

    def batches(self) -> list[list[Record]]:
        """The records of the lake, in the order of landing; read them once, before others."""
        raise NotImplementedError

    def change(self, lsn: int, op: str, key: int = 0, n: int | None = None, body: str = "", **more: Any) -> Record:
        """A change at a position of the source's log. Truncates, and deletes without `n`, have no row.

        Args:
            body: one that names the row and `n` unless given.
            more: `Topic.change`'s arguments.
        """
        row = None if n is None else {"n": n, "body": body or f"{key} was {n}"}
        return self.topic.change(op, key, row, lsn=lsn, ts_ms=START_MS + lsn, **more)

    def moved_away(self, lsn: int, key: int, to: int, *, partition: int) -> list[Record]:
        """The first half of a key change: the old key's delete, and its tombstone."""
        headers = [("__debezium.newkey", json.dumps({"id": to}).encode())]
        delete = self.change(lsn, "d", key, headers=headers, partition=partition)
        return [delete, self.topic.tombstone(key, headers=headers, partition=partition)]

    def moved_here(self, lsn: int, key: int, n: int, *, since: int, partition: int) -> Record:
        """The second half of a key change: the new key's insert, without the large value.

        Args:
            since: the old key.
        """
        headers = [("__debezium.oldkey", json.dumps({"id": since}).encode())]
        return self.change(lsn, "c", key, n, UNSENT, headers=headers, partition=partition)


class Stock(Table):
    """A table whose rows were truncated, a deleted row, and a snapshot that has begun and will lack one row."""

    kind = "stock"
    settings: Mapping[str, Any] = {"deletes": {"missing_after_snapshot": True}}

    def batches(self) -> list[list[Record]]:
        """See `Table`."""
        return [
            [
                self.change(100, "c", 1, 1),
                self.change(110, "c", 2, 2),
                self.change(120, "t"),
                self.change(130, "c", 3, 3),
                self.change(140, "c", 4, 4),
                self.change(150, "c", 5, 5),
            ],
            [
                self.change(160, "u", 3, 30),
                self.change(170, "d", 4),
                self.topic.tombstone(4),
            ],
            [
                self.change(180, "r", 3, 30, snapshot="first"),
                self.change(180, "r", 8, 8, snapshot="true"),
            ],
        ]


class Parts(Table):
    """A table with key changes of which only one half has arrived, because the other partition is behind."""

    kind = "parts"
    partitions = 2
    settings: Mapping[str, Any] = {"quality": {"expectations": (POSITIVE,)}}

    def batches(self) -> list[list[Record]]:
        """See `Table`."""
        return [
            [
                self.change(100, "c", 1, 1),
                self.change(110, "c", 2, 2),
                self.change(120, "c", 3, 3),
                self.change(130, "c", 4, 4, partition=1),
                self.change(140, "c", 6, 6),
            ],
            [
                *self.moved_away(200, 1, 11, partition=0),
                self.moved_here(210, 12, 12, since=2, partition=1),
                self.moved_here(220, 13, 13, since=6, partition=1),
                *self.moved_away(230, 13, 14, partition=1),
                self.change(240, "u", 3, -3, partition=0),  # rejected: the row does not change
                self.change(250, "d", 4, partition=1),
                self.topic.tombstone(4, partition=1),
                self.change(260, "c", 5, -5, partition=1),  # rejected: there is no row
            ],
        ]


class Tables:
    """The lake's tables, of each kind one with hard and one with soft deletes, and the servers' state."""

    def __init__(self) -> None:
        self.broker = FakeBroker()
        self.registry = FakeRegistry()
        self.stock = {deletes: Stock(deletes, self.registry) for deletes in DELETES}
        self.parts = {deletes: Parts(deletes, self.registry) for deletes in DELETES}
        self.all: list[Table] = [*self.stock.values(), *self.parts.values()]
        for table in self.all:
            self.broker.add_partitions(table.name, table.partitions)

    def config(self, root: Path, *, with_hudi: bool = False, **changed: Any) -> Config:
        """The settings of the lake in a folder.

        Args:
            with_hudi: hold the tables with hard deletes in Hudi, too, copy-on-write.
            changed: settings of tables that are others by now.
        """
        both = (TABLE_TYPES["delta"], TABLE_TYPES["hudi-cow"])
        tables = {
            table.name: TableConfig(
                storage=both if with_hudi and table.deletes == "hard" else both[:1],
                **patched(
                    {"deletes": {"mode": table.deletes, "retention_days": _DAYS}}, patched(table.settings, changed)
                ),
            )
            for table in self.all
        }
        return Config(lake=LakeConfig(root=str(root)), tables=tables)
