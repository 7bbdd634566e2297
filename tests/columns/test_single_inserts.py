"""Rows that have one event each, which adds them, are folded without Python, as `fold.arrow` folds them."""

import random

import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType
from rules.arrow_table import STREAM, event_row
from support import reference
from support.histories import LARGE, random_log

from cdc_lake.fold.arrow import fold
from cdc_lake.fold.rules import UPSERTS
from cdc_lake.fold.stream import PIECES, Rules
from cdc_lake.silver.fold_result import Totals
from cdc_lake.silver.merge import single_inserts

pytestmark = pytest.mark.core

LOGS = 20


def test_pieces_of_single_inserts_equal_the_fold(spark: SparkSession) -> None:
    found = {}
    for seed in range(LOGS):
        log = random_log(random.Random(seed), 12)
        for place, event in reference.in_log_order(log.events):
            # Also updates, because they may lack large values.
            if event.op in UPSERTS and event.moved_from is None:
                key = f"{seed} {event.key}"
                found.setdefault(key, {**event_row(place, event), "key": key, "is_new": True})
    stream = pa.Table.from_pylist(sorted(found.values(), key=lambda row: row["key"]), STREAM)
    expected = [
        piece
        for batch in fold(stream.to_batches(), Rules(LARGE, hard=True, truncates_hard=True))
        for piece in batch.to_pylist()
    ]
    history = spark.createDataFrame([Row(**row) for row in stream.to_pylist()], from_arrow_schema(STREAM))

    pieces = single_inserts(history, StructType([*from_arrow_schema(PIECES), history.schema["pk"]]), LARGE)

    assert len(expected) > LOGS
    assert any(piece["missing"] for piece in expected)
    assert Totals.of(pieces) == Totals.of_inserts(len(expected))
    assert sorted((row.asDict(recursive=True) for row in pieces.collect()), key=lambda row: row["key"]) == expected
