"""The side table: the pinned version counts, also after the table changed."""

import shutil
from pathlib import Path

import pytest
from chispa import assert_df_equality
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from cdc_lake.columns import DELETE, SIDE
from cdc_lake.errors import DamagedFileError, TableLockedError
from cdc_lake.lake import side
from cdc_lake.lake.side import DAY_MS, SideTable
from cdc_lake.tables.progress import SidePin

ENTRY = ", ".join(f"{name} {kind}" for name, kind in {**SIDE, DELETE: "boolean"}.items())


def entries(spark: SparkSession, *given: tuple[str, str, str], gone: bool = False, at_ms: int = 0) -> DataFrame:
    """Entries as (kind, id, image)."""
    order, kafka = ([1, 2], "a domain", 3), (4, "topic", 0, 0, 5)
    rows = [(kind, id_, "k", "m", None, order, kafka, kafka, image, 1, at_ms, gone) for kind, id_, image in given]
    return spark.createDataFrame(rows, ENTRY)


def held(table: SideTable, pin: SidePin | None) -> set[tuple[str, str, str]]:
    return {(row["kind"], row["id"], row["image"]) for row in table.read(pin).collect()}


def write(table: SideTable, pin: SidePin | None, rows: DataFrame, *, at_ms: int = 0) -> SidePin:
    written = table.write(pin, rows, at_ms=at_ms, memory_days=30)
    assert written is not None
    return written


Pins = tuple[SidePin, SidePin]


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> SideTable:
    return SideTable(spark, str(tmp_path / "a side"))


@pytest.fixture(scope="module")
def written(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SidePin, SidePin]:
    """A table with two commits: its folder and both pins."""
    folder = tmp_path_factory.mktemp("written") / "side"
    table = SideTable(spark, str(folder))
    first = write(table, None, entries(spark, ("key", "a", "1")))
    return folder, first, write(table, first, entries(spark, ("key", "b", "2"), ("image", "m", "2")))


@pytest.fixture
def pins(table: SideTable, written: tuple[Path, SidePin, SidePin]) -> Pins:
    """The current pins of the two commits."""
    folder, *found = written
    shutil.copytree(folder, table.path)
    first, second = found
    return first, second


def test_missing_pin_reads_no_entries(table: SideTable) -> None:
    nothing = table.read(None)

    assert nothing.count() == 0
    assert dict(nothing.dtypes) == {name: kind.replace(": ", ":").replace(", ", ",") for name, kind in SIDE.items()}


def test_empty_write_creates_no_table(spark: SparkSession, table: SideTable) -> None:
    assert table.write(None, entries(spark), at_ms=0, memory_days=30) is None
    assert table.write(None, entries(spark, ("key", "a", ""), gone=True), at_ms=0, memory_days=30) is None
    assert not Path(table.path).exists()


def test_merge_adds_replaces_and_removes_by_kind_and_id(spark: SparkSession, table: SideTable) -> None:
    first = write(table, None, entries(spark, ("key", "a", "1"), ("key", "b", "1"), ("image", "a", "1")))
    changes = entries(spark, ("key", "a", "2"), ("rejected", "c", "2")).union(
        entries(spark, ("key", "b", ""), ("image", "unknown", ""), gone=True)
    )

    second = write(table, first, changes)

    assert held(table, second) == {("key", "a", "2"), ("image", "a", "1"), ("rejected", "c", "2")}
    assert held(table, first) == {("key", "a", "1"), ("key", "b", "1"), ("image", "a", "1")}
    assert (first.kinds, second.kinds) == (("key", "image"), ("key", "image", "rejected"))
    assert second.id == first.id


def test_entry_round_trips(spark: SparkSession, table: SideTable) -> None:
    given = entries(spark, ("image", "m", '{"text": "x"}'), at_ms=7)

    pin = write(table, None, given)

    assert_df_equality(table.read(pin), given.drop(DELETE), ignore_nullable=True)
    assert table.read(pin).columns == list(SIDE)


def test_write_without_changes_keeps_the_version(spark: SparkSession, table: SideTable, pins: Pins) -> None:
    _, pin = pins

    assert table.write(pin, entries(spark), at_ms=0, memory_days=30) == pin
    assert write(table, pin, entries(spark, ("key", "unknown", ""), gone=True)) == pin


def test_entries_after_the_pin_are_ignored(spark: SparkSession, table: SideTable, pins: Pins) -> None:
    first, died = pins

    again = write(table, first, entries(spark, ("key", "c", "3")))

    assert held(table, again) == {("key", "a", "1"), ("key", "c", "3")}
    assert (again.version, again.kinds) == (died.version + 1, ("key",))


def test_existing_entries_are_ignored_without_a_pin(spark: SparkSession, table: SideTable, pins: Pins) -> None:
    _, died = pins

    pin = write(table, None, entries(spark, ("key", "c", "3")))

    assert held(table, pin) == {("key", "c", "3")}
    assert (pin.id, pin.kinds) == (died.id, ("key",))


def test_expired_entries_are_removed_once_a_day(spark: SparkSession, table: SideTable) -> None:
    old = entries(spark, ("key", "old", "1"), at_ms=0).union(entries(spark, ("image", "new", "1"), at_ms=40 * DAY_MS))
    pin = write(table, None, old, at_ms=40 * DAY_MS)

    within = write(table, pin, entries(spark, ("image", "x", "2"), at_ms=41 * DAY_MS - 1), at_ms=41 * DAY_MS - 1)
    after = write(table, within, entries(spark, ("image", "y", "3"), at_ms=41 * DAY_MS), at_ms=41 * DAY_MS)

    assert ("key", "old", "1") in held(table, within)
    assert held(table, after) == {("image", "new", "1"), ("image", "x", "2"), ("image", "y", "3")}
    assert (within.swept_ms, after.swept_ms) == (40 * DAY_MS, 41 * DAY_MS)
    assert (within.kinds, after.kinds) == (("key", "image"), ("image",))


def test_table_of_many_files_is_rewritten(
    spark: SparkSession, table: SideTable, pins: Pins, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, pin = pins
    before = table.read(pin).inputFiles()
    assert len(before) > 1
    monkeypatch.setattr(side, "MAX_FILES", 1)

    rewritten = write(table, pin, entries(spark, ("key", "c", "3")))

    assert held(table, rewritten) == {("key", "a", "1"), ("key", "b", "2"), ("image", "m", "2"), ("key", "c", "3")}
    after = table.read(rewritten).inputFiles()
    assert len(after) <= 2
    assert not {*before} & {*after}


def test_missing_table_is_data_loss(
    spark: SparkSession, table: SideTable, written: tuple[Path, SidePin, SidePin]
) -> None:
    *_, pin = written

    with pytest.raises(DamagedFileError, match="the table is missing, so silver's record of its deletes is lost"):
        table.read(pin)
    with pytest.raises(DamagedFileError, match="the table is missing"):
        table.write(pin, entries(spark, ("key", "a", "1")), at_ms=0, memory_days=30)


def test_another_table_is_data_loss(table: SideTable, pins: Pins) -> None:
    _, pin = pins

    with pytest.raises(DamagedFileError, match="silver refers to another table"):
        table.read(pin.model_copy(update={"id": "another"}))


def test_version_of_another_history_is_data_loss(spark: SparkSession, table: SideTable, pins: Pins) -> None:
    first, second = pins
    DeltaTable.forPath(spark, table.path).restoreToVersion(first.version)
    of_before = second.model_copy(update={"version": second.version + 1})

    assert (first.nonce, second.nonce) != ("", "") and first.nonce != second.nonce
    with pytest.raises(DamagedFileError, match="version 2 is not the commit that silver refers to"):
        table.read(of_before)


def test_missing_version_is_data_loss(table: SideTable, pins: Pins) -> None:
    _, pin = pins

    with pytest.raises(DamagedFileError, match="version 9 cannot be read"):
        table.read(pin.model_copy(update={"version": 9}))


def test_vacuumed_version_is_data_loss(spark: SparkSession, table: SideTable, pins: Pins) -> None:
    first, second = pins
    for file in table.read(first).inputFiles():
        (Path(table.path) / Path(file).name).unlink()

    with pytest.raises(DamagedFileError, match=f"files of version {first.version} were vacuumed"):
        table.read(first)
    with pytest.raises(DamagedFileError):
        table.write(first, entries(spark, ("key", "c", "1")), at_ms=0, memory_days=30)
    assert second.version > first.version


@pytest.mark.parametrize("meanwhile", ["DELETE FROM", "INSERT INTO"])
def test_concurrent_write_raises_table_locked(
    spark: SparkSession, table: SideTable, pins: Pins, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    _, pin = pins
    merge = SideTable._merge
    end = " VALUES ('key', 'z', null, null, null, null, null, null, null, 1, 1)" if "INSERT" in meanwhile else ""

    def forestalled(self: SideTable, rows: DataFrame) -> None:
        spark.newSession().sql(f"{meanwhile} delta.`{table.path}`{end}").collect()
        merge(self, rows)

    monkeypatch.setattr(SideTable, "_merge", forestalled)

    with pytest.raises(TableLockedError, match="another run wrote the table"):
        write(table, pin, entries(spark, ("key", "a", "2")))


def test_side_table_commits_leave_no_session_settings(spark: SparkSession, table: SideTable, pins: Pins) -> None:
    DeltaTable.forPath(spark, table.path).delete()

    assert DeltaTable.forPath(spark, table.path).history(1).collect()[0]["userMetadata"] is None
    assert spark.conf.get("spark.databricks.delta.merge.materializeSource", None) in (None, "auto")
