"""The state of a table: what it has, what is quarantined, and what it lacks of the layer below."""

import time
from collections.abc import Mapping
from typing import NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from cdc_lake.config.gold_models import Header
from cdc_lake.errors import CdcLakeError
from cdc_lake.lake.lake import Lake, SilverTarget
from cdc_lake.lake.readers import BronzeState, Reader
from cdc_lake.storage.files import Files
from cdc_lake.tables.newest import commit_ms_after


class TableState(NamedTuple):
    """The state of a table at its newest commit.

    Attributes:
        commit: the number of the commit; None if the table does not exist.
        consumed: as in a run report; of silver `{"bronze": batch}`.
        behind_records: silver: the records of bronze that it has not merged. None for other layers.
        behind_seconds: the age of the oldest change in the layer below that the table lacks; 0 if it lacks none. For
            silver since the record's time in Kafka, for gold since silver's commit. None for bronze, or if unknown.
        quarantined: bronze: the quarantined records; silver: the events that it rejected. Replayed and dropped ones do
            not count; rejected events count until silver's next run. None for gold, and without a table.
    """

    commit: int | None = None
    consumed: Mapping[str, int] = {}
    behind_records: int | None = None
    behind_seconds: float | None = None
    quarantined: int | None = None


def bronze_state(bronze: BronzeState) -> TableState:
    """The state of a bronze table."""
    position = {str(partition): offset for partition, offset in bronze.progress.position.items()}
    return TableState(bronze.progress.commit, position, quarantined=bronze.rows.quarantined())


def silver_state(reader: Reader, target: SilverTarget, bronze: BronzeState) -> TableState:
    """The state of a silver table."""
    silver = reader.silver(target)
    progress = silver.progress if silver else None
    is_known = progress is not None and progress.is_of(bronze.table_id, bronze.progress) is not False
    reached = progress.sources[bronze.table_id] if progress and is_known else 0
    behind: tuple[int, int | None] = (0, None)
    if reached < bronze.progress.commit:
        behind = bronze.rows.waiting(reached)
    quarantined = None
    if progress:
        rejected = reader.rejected(target, progress)
        quarantined = len(rejected - bronze.rows.dropped_events()) if rejected else 0
    return TableState(
        commit=progress.commit if progress else None,
        consumed={"bronze": reached},
        behind_records=behind[0],
        behind_seconds=seconds_since(behind[1]),
        quarantined=quarantined,
    )


def gold_state(lake: Lake, reader: Reader, files: Files, model: Header) -> TableState:
    """The state of a model's table."""
    gold = reader.gold(model.name, model.table)
    if gold is None:
        return TableState()
    missed_ms = list[int | None]()
    for target in (lake.silver(topic)[0] for topic in model.topics.values()):
        try:
            silver = reader.silver(target)
        except (CdcLakeError, PySparkException, Py4JJavaError):  # the error is silver's, not gold's
            return TableState(gold.progress.commit, gold.progress.sources)
        if silver and gold.progress.sources.get(silver.table_id) != silver.progress.commit:
            read = gold.progress.versions.get(silver.table_id, -1)
            missed_ms.append(commit_ms_after(files, target.path, target.storage.format, read))
    known_ms = [at_ms for at_ms in missed_ms if at_ms is not None]
    is_known = len(known_ms) == len(missed_ms)  # there is no later commit if silver was restored
    behind = seconds_since(min(known_ms, default=None)) if is_known else None
    return TableState(gold.progress.commit, gold.progress.sources, behind_seconds=behind)


def seconds_since(then_ms: int | None) -> float:
    """Seconds since a time; 0 without a time."""
    return 0.0 if then_ms is None else round(max(time.time() - then_ms / 1000, 0.0), 1)
