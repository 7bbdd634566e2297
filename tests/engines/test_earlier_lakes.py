"""Lakes of earlier versions: what their side tables remember still counts.

tests/lakes/story.py has the events before the archive; the later events are here.
"""

import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conformance.by_lake import silver_rows
from lakes.story import UNSENT, Deletes, Parts, Stock, Tables
from pyspark.sql import SparkSession
from support.events import Record
from support.setting_groups import patched

from cdc_lake.bronze.run import run_bronze
from cdc_lake.operations.replay import replay_quarantined
from cdc_lake.runs.report import Report
from cdc_lake.runs.scheduler import TableScheduler
from cdc_lake.silver.run import run_silver
from cdc_lake.spark.jars import EXTRACTION_FILTER

LAKES = sorted((Path(__file__).parents[1] / "fixtures" / "lakes").glob("*.tar.gz"))
LENIENT = {"name": "not_far_below", "holds": "n > -50", "on_fail": "reject"}
"""Expectations of later rows; the lake's rejected events do not meet them."""


class Shown(NamedTuple):
    """Silver's rows, `n` and `body` by key: live rows, deleted rows, and unavailable columns."""

    live: dict[int, tuple[int, str | None]]
    gone: dict[int, tuple[int, str | None]]
    lacks: dict[int, list[str]]


def sent_again(table: Stock) -> list[Record]:
    """Replayed events of removed keys, from before their deletes."""
    return [
        table.change(100, "c", 1, 1),
        table.change(115, "c", 7, 7),
        table.change(140, "c", 4, 4),
    ]


def end_of_snapshot(table: Stock) -> list[Record]:
    """The snapshot's last row, without one of key 5; then changes, also of removed keys."""
    return [
        table.change(180, "r", 9, 9, snapshot="last"),
        table.change(200, "u", 8, 80),
        table.change(210, "c", 1, 100),
        table.change(220, "c", 4, 40),
        table.change(225, "u", 9, 90),
    ]


def delete_and_replay(table: Stock) -> list[Record]:
    """Another delete, a change from before it, and the truncate, which is older than all rows."""
    return [
        table.change(230, "d", 8),
        table.topic.tombstone(8),
        table.change(200, "u", 8, 80),
        table.change(240, "u", 3, 31),
        table.change(120, "t"),
    ]


def other_halves(table: Parts) -> list[Record]:
    """The missing halves of the lake's key changes, and an event of a removed key."""
    return [
        table.moved_here(200, 11, 11, since=1, partition=1),
        *table.moved_away(210, 2, 12, partition=0),
        *table.moved_away(220, 6, 13, partition=0),
        table.moved_here(230, 14, 14, since=13, partition=0),
        table.change(130, "c", 4, 4, partition=1),
    ]


def first_half(table: Parts) -> list[Record]:
    """Half of another key change."""
    return table.moved_away(300, 12, 22, partition=0)


def second_half(table: Parts) -> list[Record]:
    """Its other half, both halves of one more, a value that was not sent, a delete, a replay, a rejected row."""
    return [
        table.moved_here(300, 22, 22, since=12, partition=1),
        *table.moved_away(310, 11, 21, partition=1),
        table.moved_here(310, 21, 21, since=11, partition=0),
        table.change(320, "u", 3, 33, UNSENT),
        table.change(330, "d", 14),
        table.topic.tombstone(14),
        table.moved_here(230, 14, 14, since=13, partition=0),
        table.change(340, "u", 5, -99, partition=1),
    ]


class Kept:
    """A lake from an archive, and the servers' state at that time.

    Args:
        archive: the lake's.
        with_hudi: whether the tables that are in Hudi, too, are carried on there as well.
    """

    def __init__(self, spark: SparkSession, root: Path, archive: Path, *, with_hudi: bool = False) -> None:
        with tarfile.open(archive) as packed:
            packed.extraction_filter = EXTRACTION_FILTER
            packed.extractall(root)
        self.tables = Tables()
        self._root, self._with_hudi = root, with_hudi
        self._scheduler = TableScheduler(2, spark)
        self._settings: dict[str, Any] = {}
        for table in self.tables.all:
            for batch in table.batches():
                self._send(batch)

    def take(self, *batches: Sequence[Record], replay: Sequence[str] = (), **changed: Any) -> None:
        """Land and fold records; every run must succeed.

        Args:
            replay: topics whose rejected events are brought back in between.
            changed: settings that are others from now on.
        """
        self._settings = patched(self._settings, changed)
        config = self.tables.config(self._root, with_hudi=self._with_hudi, **self._settings)
        names = sorted({record.topic for batch in batches for record in batch})
        for batch in batches:
            self._send(batch)
        source, registry = self.tables.broker, self.tables.registry
        succeed(run_bronze(config, names, source=source, registry=registry, scheduler=self._scheduler))
        if replay:
            succeed(replay_quarantined(config, replay, registry=registry, scheduler=self._scheduler))
        succeed(run_silver(config, names, scheduler=self._scheduler))

    def _send(self, records: Sequence[Record]) -> None:
        for record in records:
            self.tables.broker.append(record)


def succeed(report: Report) -> None:
    assert {
        table_report.table: table_report.error for table_report in report.tables if table_report.error is not None
    } == {}


def shown(root: Path, topic: str, layer: str) -> Shown:
    found = Shown({}, {}, {})
    for row in silver_rows(root, topic, layer):
        part = found.gone if row["__deleted"] else found.live
        assert row["id"] not in {*found.live, *found.gone}
        part[row["id"]] = row["n"], row["body"]
        if row["__unavailable"]:
            found.lacks[row["id"]] = row["__unavailable"]
    return found


class Carried(NamedTuple):
    """The rows of two tables before and after each of three batches."""

    deletes: tuple[Deletes, Deletes]
    stock: list[Shown]
    parts: list[Shown]


def carry_on(
    spark: SparkSession,
    root: Path,
    archive: Path,
    deletes: tuple[Deletes, Deletes],
    *,
    with_hudi: bool = False,
    layer: str = "silver",
) -> Carried:
    """Continue the stock and the parts with these deletes, and compare their rows in a layer."""
    kept = Kept(spark, root, archive, with_hudi=with_hudi)
    stock, parts = kept.tables.stock[deletes[0]], kept.tables.parts[deletes[1]]
    carried = Carried(deletes, [], [])

    def look() -> None:
        carried.stock.append(shown(root, stock.name, layer))
        carried.parts.append(shown(root, parts.name, layer))

    look()
    kept.take(sent_again(stock), other_halves(parts))
    look()
    kept.take(end_of_snapshot(stock), first_half(parts), replay=[parts.name], quality={"expectations": (LENIENT,)})
    look()
    kept.take(delete_and_replay(stock), second_half(parts))
    look()
    return carried


@pytest.fixture(
    scope="module",
    params=[
        ("hard", "soft"),
        pytest.param(("soft", "hard"), marks=pytest.mark.deep),
    ],
    ids="-".join,
)
def deletes(request: pytest.FixtureRequest) -> tuple[Deletes, Deletes]:
    """Of the stock and of the parts."""
    found: tuple[Deletes, Deletes] = request.param
    return found


@pytest.fixture(scope="module", params=LAKES, ids=lambda file: file.name)
def carried(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
    deletes: tuple[Deletes, Deletes],
) -> Carried:
    return carry_on(spark, tmp_path_factory.mktemp("kept"), request.param, deletes)


STOCK = [
    Shown(
        live={3: (30, "3 was 30"), 5: (5, "5 was 5"), 8: (8, "8 was 8")},
        gone={1: (1, "1 was 1"), 2: (2, "2 was 2"), 4: (4, "4 was 4")},
        lacks={},
    ),
    Shown(  # as before: key 7 was never seen, and its event is older than the truncate
        live={3: (30, "3 was 30"), 5: (5, "5 was 5"), 8: (8, "8 was 8")},
        gone={1: (1, "1 was 1"), 2: (2, "2 was 2"), 4: (4, "4 was 4")},
        lacks={},
    ),
    Shown(  # key 5 was not in the snapshot
        live={
            1: (100, "1 was 100"),
            3: (30, "3 was 30"),
            4: (40, "4 was 40"),
            8: (80, "8 was 80"),
            9: (90, "9 was 90"),
        },
        gone={2: (2, "2 was 2"), 5: (5, "5 was 5")},
        lacks={},
    ),
    Shown(
        live={1: (100, "1 was 100"), 3: (31, "3 was 31"), 4: (40, "4 was 40"), 9: (90, "9 was 90")},
        gone={2: (2, "2 was 2"), 5: (5, "5 was 5"), 8: (80, "8 was 80")},
        lacks={},
    ),
]
"""The rows of a stock with soft deletes; with hard deletes, the same without deleted rows."""
PARTS = [
    Shown(
        live={2: (2, "2 was 2"), 3: (3, "3 was 3"), 6: (6, "6 was 6"), 12: (12, None)},
        gone={1: (1, "1 was 1"), 4: (4, "4 was 4"), 13: (13, None)},
        lacks={12: ["body"], 13: ["body"]},
    ),
    Shown(
        live={3: (3, "3 was 3"), 11: (11, "1 was 1"), 12: (12, "2 was 2"), 14: (14, "6 was 6")},
        gone={1: (1, "1 was 1"), 2: (2, "2 was 2"), 4: (4, "4 was 4"), 6: (6, "6 was 6"), 13: (13, "6 was 6")},
        lacks={},
    ),
    Shown(
        live={3: (-3, "3 was -3"), 5: (-5, "5 was -5"), 11: (11, "1 was 1"), 14: (14, "6 was 6")},
        gone={
            1: (1, "1 was 1"),
            2: (2, "2 was 2"),
            4: (4, "4 was 4"),
            6: (6, "6 was 6"),
            12: (12, "2 was 2"),
            13: (13, "6 was 6"),
        },
        lacks={},
    ),
    Shown(
        live={3: (33, "3 was -3"), 5: (-5, "5 was -5"), 21: (21, "1 was 1"), 22: (22, "2 was 2")},
        gone={
            1: (1, "1 was 1"),
            2: (2, "2 was 2"),
            4: (4, "4 was 4"),
            6: (6, "6 was 6"),
            11: (11, "1 was 1"),
            12: (12, "2 was 2"),
            13: (13, "6 was 6"),
            14: (14, "6 was 6"),
        },
        lacks={},
    ),
]
"""The rows of the parts with soft deletes."""


def expected(soft: Shown, deletes: Deletes) -> Shown:
    if deletes == "soft":
        return soft
    return Shown(soft.live, {}, {key: names for key, names in soft.lacks.items() if key in soft.live})


def test_archived_lakes_exist() -> None:
    assert LAKES


def test_silver_of_an_older_version_is_unchanged(carried: Carried) -> None:
    assert carried.stock[0] == expected(STOCK[0], carried.deletes[0])
    assert carried.parts[0] == expected(PARTS[0], carried.deletes[1])


def test_event_older_than_its_delete_or_truncate_is_ignored(carried: Carried) -> None:
    assert carried.stock[1] == expected(STOCK[1], carried.deletes[0])


def test_second_half_of_a_key_change_carries_the_large_value(carried: Carried) -> None:
    assert carried.parts[1] == expected(PARTS[1], carried.deletes[1])


def test_end_of_a_started_snapshot_deletes_the_missing_row(carried: Carried) -> None:
    assert carried.stock[2] == expected(STOCK[2], carried.deletes[0])


def test_replayed_rejected_event_is_applied(carried: Carried) -> None:
    assert carried.parts[2] == expected(PARTS[2], carried.deletes[1])


def test_state_remembered_after_the_upgrade_is_applied(carried: Carried) -> None:
    assert carried.stock[3] == expected(STOCK[3], carried.deletes[0])
    assert carried.parts[3] == expected(PARTS[3], carried.deletes[1])


@pytest.mark.deep
@pytest.mark.hudi
@pytest.mark.parametrize("archive", LAKES, ids=lambda file: file.name)
def test_silver_in_hudi_continues_to_the_same_rows(spark: SparkSession, tmp_path: Path, archive: Path) -> None:
    carried = carry_on(spark, tmp_path, archive, ("hard", "hard"), with_hudi=True, layer="silver_hudi_cow")

    assert carried.stock == [expected(each, "hard") for each in STOCK]
    assert carried.parts == [expected(each, "hard") for each in PARTS]
