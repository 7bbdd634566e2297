"""Silver tables with rows that a test sets, changed by the product's own merges."""

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from cdc_lake.columns import SILVER_META
from cdc_lake.config import Config
from cdc_lake.runs.context import lake_of
from cdc_lake.tables.contract import Changes
from cdc_lake.tables.progress import SilverProgress

Change = Mapping[int, tuple[Any, ...] | None]
"""Rows by their key, which is the first column; null for a deleted one."""


class SilverWriter:
    """The silver tables of a lake.

    Args:
        columns: by topic its columns and their types, the key first.
    """

    def __init__(self, spark: SparkSession, config: Config, columns: Mapping[str, str]) -> None:
        self._spark = spark
        self._config = config
        self._columns = columns

    def change(self, topic: str, rows: Change, *, soft: bool = False) -> None:
        """Upsert or delete rows in one commit of silver."""
        width = len(self._columns[topic].split(", "))
        full = [
            (*(row or (number, *[None] * (width - 1))), row is None, row is None and not soft)
            for number, row in rows.items()
        ]
        kinds = f"{self._columns[topic]}, __deleted boolean, __delete boolean"
        self.merge(topic, self._spark.createDataFrame(full, kinds))

    def merge(self, topic: str, rows: DataFrame) -> None:
        """One commit of silver, with the given columns of silver's own."""
        (target,) = lake_of(self._config).silver(topic)
        silver = target.open(self._spark)
        before = silver.progress()
        key = self._columns[topic].split()[0]
        first = SilverProgress(run_id="by hand", commit=1, keys=(key,))
        progress = before.next("by hand") if before else first
        known = {"__deleted": "false", "__delete": "false"} | {name: name for name in rows.columns}
        known |= {"__batch": str(progress.commit), "__key": f"to_json(struct({key}))", "__keep": "array()"}
        kinds = SILVER_META | {"__key": "string", "__keep": "array<string>", "__delete": "boolean"}
        meta = (f"CAST({known.get(name, 'null')} AS {kind}) AS {name}" for name, kind in kinds.items())
        source = (column.split()[0] for column in self._columns[topic].split(", "))
        silver.merge(Changes(rows.selectExpr(*source, *meta), [key]), progress)
