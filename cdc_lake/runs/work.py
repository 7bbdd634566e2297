"""The interface between `TableScheduler` and the work of a run on its tables."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql import SparkSession

from cdc_lake.runs.context import OpenRun, Run
from cdc_lake.runs.report import TableReport
from cdc_lake.storage.files import Files


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

    @abstractmethod
    def process_next(self, spark: SparkSession, done: TableReport) -> bool:
        """Process the next batch. Returns whether there are more."""


@dataclass
class Layer(ABC):
    """A run of a layer that updates tables with new data.

    Attributes:
        run: the run.
        files: the lake's files.
        tables: the names of its tables.
    """

    run: Run
    files: Files
    tables: Sequence[str]

    @abstractmethod
    def new_data(self, done: TableReport) -> NewData | None:
        """The new data for a table, found without Spark; None if only `Work.process_next` can find it.

        Args:
            done: the table's report, which gets the progress and the version if nothing is new.
        """

    @abstractmethod
    def work(self, run: OpenRun) -> Work:
        """The work on the tables with new data."""

    def topic(self, table: str) -> str:
        """The topic of a table. A later layer processes a topic right after the layer before."""
        return table

    def look_again(self, tables: Sequence[str]) -> None:
        """Clear the state of the source that `new_data` caches."""
        return

    @abstractmethod
    def before_report(self) -> None:
        """Reach the layer's failpoint."""

    def check(self) -> None:
        """Check the requirements of the work before Spark starts."""
        return
