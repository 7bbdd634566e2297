"""Missing, truncated and overwritten files of the lake: the run's error, and that its cure works."""

import io
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from support.copies import copied
from support.three_layers import Lake

from cdc_lake.config import Config, LakeConfig, StorageConfig
from cdc_lake.lake.schema_files import SchemaFiles
from cdc_lake.operations.rebuild import run_rebuild
from cdc_lake.operations.status import status
from cdc_lake.runs.report import Report, TableReport
from cdc_lake.silver.run import run_silver
from cdc_lake.storage.files import LocalFiles

DELTA, HUDI = StorageConfig(), StorageConfig(format="hudi", type="mor")


def gone(file: Path) -> None:
    file.unlink()
    _forget_checksum(file)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    _forget_checksum(file)


def cut_with_checksum(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def empty(file: Path) -> None:
    file.write_bytes(b"")
    _forget_checksum(file)


def flipped(file: Path) -> None:
    """Change a value of each column of integers in a Parquet file, or a byte of each line of another file.

    Readers that do not verify checksums read such Parquet files, with other values.
    """
    content = bytearray(file.read_bytes())
    if file.suffix == ".parquet":
        group = pq.ParquetFile(file).metadata.row_group(0)
        for number in range(group.num_columns):
            if group.column(number).physical_type == "INT64":
                _change_a_value(content, group.column(number))
    else:
        for end in [number for number, byte in enumerate(content) if byte == ord("\n")]:
            content[end - 1] ^= 0xFF
    file.write_bytes(content)
    _forget_checksum(file)


def _change_a_value(content: bytearray, column: pq.ColumnChunkMetaData) -> None:
    """Flip a bit of a column that changes a value, if there is one."""
    (name, *_) = column.path_in_schema.split(".")
    before = pq.read_table(io.BytesIO(content), columns=[name])
    start = column.dictionary_page_offset or column.data_page_offset
    for place in reversed(range(column.data_page_offset, start + column.total_compressed_size)):
        content[place] ^= 1
        try:
            if pq.read_table(io.BytesIO(content), columns=[name]) != before:
                return
        except (OSError, ValueError):
            pass  # it cannot be read
        content[place] ^= 1


def _forget_checksum(file: Path) -> None:
    """Remove checksum files, as in stores without them."""
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


class Built:
    """Lakes with a deleted row that the side table remembers, made once; each test gets a copy."""

    def __init__(self, spark: SparkSession, folder: Callable[[str], Path]) -> None:
        self._spark, self._folder = spark, folder
        self._lakes: dict[str, Lake] = {}

    def copy(self, held_in: StorageConfig, root: Path) -> Lake:
        if held_in.kind not in self._lakes:
            lake = Lake(self._spark, self._folder(held_in.kind), held_in, deletes={"mode": "hard"})
            lake.take(1, 2, 3, 4)
            lake.take(1, 5)
            lake.delete(2)
            lake.take(3)
            self._lakes[held_in.kind] = lake
        return copied(self._lakes[held_in.kind], root)


@pytest.fixture(scope="module")
def built(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Built:
    return Built(spark, tmp_path_factory.mktemp)


@pytest.fixture
def lake(built: Built, tmp_path: Path) -> Lake:
    """A lake in Delta."""
    return built.copy(DELTA, tmp_path / "lake")


def entry(number: int) -> Callable[[Lake, str], Path]:
    """An entry in the log of a layer's Delta table."""
    return lambda lake, layer: sorted(lake.root.glob(f"{layer}/**/_delta_log/*.json"))[number]


def data(lake: Lake, layer: str) -> Path:
    """The newest data file of a layer's table."""
    files = [file for file in lake.root.glob(f"{layer}/**/*.parquet") if not {"_delta_log", ".hoodie"} & {*file.parts}]
    return max(files, key=lambda file: file.stat().st_mtime_ns)


def of_hudi(name: str) -> Callable[[Lake, str], Path]:
    return lambda lake, layer: min(lake.root.glob(f"{layer}/**/.hoodie/{name}"))


def failures(report: Report) -> list[TableReport]:
    return [table_report for table_report in report.tables if table_report.error]


def run(lake: Lake, what: str) -> list[TableReport]:
    """The tables that fail in a run of a layer, or in a rebuild."""
    runs = {"bronze": lake.run_bronze, "silver": lake.run_silver, "gold": lake.run_gold}
    return failures(runs[what]() if what in runs else run_rebuild(lake.config, ["*"], lake.spark))


def carry_out(lake: Lake, cure: str) -> None:
    """Follow the cure of an error."""
    folders = re.findall(rf"{lake.root}/[\w/]+", cure)
    assert folders, cure
    for folder in folders:
        shutil.rmtree(folder)
    if "cdc-lake rebuild" in cure:
        assert f"--table {lake.topic.table}`" in cure
        assert failures(run_rebuild(lake.config, [lake.topic.table], lake.spark)) == []
    lake.land()
    lake.fold()
    lake.refresh()


_IN_EACH_RUN = {
    "bronze-missing-entry": ("bronze", entry(1), gone, DELTA, ["bronze"]),
    "bronze-flipped-data": ("bronze", data, flipped, DELTA, ["rebuild"]),
    "silver-cut-entry": ("silver", entry(-1), cut, DELTA, ["bronze", "silver"]),
    "silver-missing-data": ("silver", data, gone, DELTA, ["bronze", "silver"]),
    "side-flipped-data": ("side", data, flipped, DELTA, ["bronze", "silver"]),
    "gold-empty-entry": ("gold", entry(1), empty, DELTA, ["bronze", "silver", "gold"]),
}
_DEEP = {
    "bronze-newest-entry-cut": ("bronze", entry(-1), cut_with_checksum, DELTA, ["bronze"]),
    "bronze-first-entry-missing": ("bronze", entry(0), gone, DELTA, ["bronze"]),
    "bronze-flipped-entry": ("bronze", entry(1), flipped, DELTA, ["bronze"]),
    "bronze-empty-entry": ("bronze", entry(1), empty, DELTA, ["bronze"]),
    "bronze-missing-data": ("bronze", data, gone, DELTA, ["rebuild"]),
    "silver-older-entry-cut": ("silver", entry(1), cut, DELTA, ["bronze", "silver"]),
    "silver-first-entry-cut": ("silver", entry(0), cut, DELTA, ["bronze", "silver"]),
    "silver-cut-data": ("silver", data, cut, DELTA, ["bronze", "silver"]),
    "silver-cut-data-with-a-checksum": ("silver", data, cut_with_checksum, DELTA, ["bronze", "silver"]),
    "silver-empty-data": ("silver", data, empty, DELTA, ["bronze", "silver"]),
    "hudi-cut-data": ("silver", data, cut, HUDI, ["bronze", "silver"]),
    "hudi-missing-settings": ("silver", of_hudi("hoodie.properties"), gone, HUDI, ["bronze", "silver"]),
    "hudi-empty-commit": ("silver", of_hudi("timeline/*.deltacommit"), empty, HUDI, ["bronze", "silver"]),
    "side-missing-data": ("side", data, gone, DELTA, ["bronze", "silver"]),
    "gold-missing-data": ("gold", data, gone, DELTA, ["bronze", "silver", "gold"]),
}
CASES = [
    *(pytest.param(*case, id=name) for name, case in _IN_EACH_RUN.items()),
    *(pytest.param(*case, id=name, marks=pytest.mark.deep) for name, case in _DEEP.items()),
]


@pytest.mark.parametrize(("layer", "which", "damage", "held_in", "runs"), CASES)
def test_damaged_file_is_named_and_the_advised_fix_works(
    built: Built,
    tmp_path: Path,
    layer: str,
    which: Callable[[Lake, str], Path],
    damage: Callable[[Path], None],
    held_in: StorageConfig,
    runs: list[str],
) -> None:
    """The last of the runs needs the file. For a run of silver, those before it land and fold changes of all rows."""
    lake = built.copy(held_in, tmp_path / "lake")
    file = which(lake, layer)
    damage(file)
    lake.change(*lake.source, max(lake.source) + 1)

    *before, failed = [run(lake, what) for what in runs]

    assert before == [[]] * (len(runs) - 1) and failed
    error = failed[0].error
    assert error is not None and (error.code, error.exit_code) == ("CDC-403", 20), error
    assert str(file) in error.message
    carry_out(lake, error.message.partition("; ")[2])
    lake.check()


@pytest.mark.parametrize(("number", "layer"), [(0, "bronze"), (1, "silver")])
def test_status_names_a_damaged_file_at_its_table(lake: Lake, number: int, layer: str) -> None:
    file = entry(1)(lake, layer)
    gone(file)

    found = status(lake.config, ["*"], lake.spark, source=lake.broker).tables

    assert [one.layer for one in found if one.error] == [layer]
    assert str(file) in str(found[number].error) and "move " in str(found[number].error)


def test_damaged_schema_file_is_restored_from_the_registry(lake: Lake) -> None:
    (file,) = (file for file in lake.root.glob("_schemas/*.avsc") if '"Envelope"' in file.read_text())
    text, files = file.read_text(), SchemaFiles(LocalFiles(), str(lake.root), lake.topic.registry)
    lake.change(*lake.source, max(lake.source) + 1)
    lake.land()
    for damage in (gone, cut):
        damage(file)

        (failed,) = run(lake, "silver")

        assert failed.error is not None and failed.error.code == "CDC-403"
        assert str(file) in failed.error.message and "cdc-lake schemas restore" in failed.error.message
        assert files.restore() == {str(file): True} and file.read_text() == text
    assert files.restore() == {}
    lake.take()
    lake.check()


def test_bronze_without_a_commit_is_an_error_with_its_path(spark: SparkSession, tmp_path: Path) -> None:
    """A run leaves such a folder if it dies in the table's first write."""
    table = tmp_path / "bronze" / "pagila" / "public" / "thing"
    (table / "_delta_log").mkdir(parents=True)

    (report,) = run_silver(Config(lake=LakeConfig(root=str(tmp_path))), ["*"], spark).tables

    assert report.error is not None
    assert (report.error.code, report.error.exit_code) == ("CDC-201", 2)
    assert report.error.message == f"{table}: the table has no commit yet; run the job that writes it first"
