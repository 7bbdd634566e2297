"""What a run does with its tables, for `TableScheduler`."""

from abc import ABC, abstractmethod
from typing import NamedTuple

from pyspark.sql import SparkSession

from cdc_lake.runs.report import TableReport


class NewData(NamedTuple):
    """The new data for a table, counted without Spark.

    Attributes:
        rows: number of new rows in the layer below; 0 if there are none.
        stored_bytes: size of the table that they change.
    """

    rows: int
    stored_bytes: int = 0


class Work(ABC):
    """The work of a run on one of its tables. `spark` is the session of the calling thread."""

    def lag(self, spark: SparkSession, done: TableReport) -> int | None:
        """The amount of new data, in the layer's unit; 0 to skip the table, None if only `process_next` can tell."""
        return None

    @abstractmethod
    def process_next(self, spark: SparkSession, done: TableReport) -> bool:
        """Process the next batch. Returns whether there are more."""
