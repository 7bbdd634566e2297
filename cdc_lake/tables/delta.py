"""A table in Delta Lake."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from delta.exceptions import DeltaConcurrentModificationException
from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc_lake.columns import DELETE, KEEP
from cdc_lake.errors import DataLossError, TableLockedError
from cdc_lake.events.types import quoted
from cdc_lake.storage import Storage
from cdc_lake.tables import Commit
from cdc_lake.tables.progress import Progress

LOG_FOLDER = "_delta_log"
_PROPERTIES = {
    "delta.enableDeletionVectors": "false",
    "delta.checkpointInterval": "20",
    "delta.logRetentionDuration": "interval 30 days",
}
"""Deletion vectors are off because not every reader of Delta knows them."""
_COMMIT_SETTINGS = ("commitInfo.userMetadata", "write.txnAppId", "write.txnVersion")


class DeltaLakeTable:
    """One Delta table by path; see `cdc_lake.tables.Table`.

    Args:
        spark: the session that reads and writes it.
        path: its folder or URL.
        partition_by: columns that the first write partitions it by.
        statistics: columns that files are skipped by, for the first write.
    """

    def __init__(
        self, spark: SparkSession, path: str, *, partition_by: Sequence[str] = (), statistics: Sequence[str] = ()
    ) -> None:
        self.path = path
        self._spark = spark
        self._storage = Storage(spark)
        self._partition_by = tuple(partition_by)
        self._statistics = tuple(statistics)

    def exists(self) -> bool:
        """See `Table`."""
        return DeltaTable.isDeltaTable(self._spark, self.path)

    def id(self) -> str:
        """See `Table`."""
        table_id: str = self._snapshot().metadata().id()
        return table_id

    def version(self) -> int:
        """See `Table`."""
        return int(self._snapshot().version())

    def progress(self) -> Progress | None:
        """See `Table`."""
        if not self.exists():
            return None
        newest = self.version()
        for version in range(newest, -1, -1):
            line = self._storage.first_line(f"{self.path}/{LOG_FOLDER}/{version:020d}.json")
            if line is None:
                break
            progress = Progress.from_metadata(json.loads(line).get("commitInfo", {}).get("userMetadata"))
            if progress is not None:
                return progress
        raise DataLossError(
            self.path,
            f"none of the commits left, up to version {newest}, says what the table has consumed",
            "restore a version that does, or rebuild the table",
        )

    def read(self, as_of: int | None = None) -> DataFrame:
        """See `Table`."""
        reader = self._spark.read.format("delta")
        if as_of is not None:
            reader = reader.option("versionAsOf", as_of)
        return reader.load(self.path)

    def append(self, rows: DataFrame, progress: Progress) -> Commit:
        """See `Table`."""
        writer = rows.write.format("delta").mode("append")
        if not self.exists():
            statistics = {"delta.dataSkippingStatsColumns": ",".join(map(quoted, self._statistics))}
            writer = writer.options(**_PROPERTIES, **(statistics if self._statistics else {}))
            if self._partition_by:
                writer = writer.partitionBy(*self._partition_by)
        with self._committing(progress):
            writer.save(self.path)
        return self._committed(progress)

    def merge(self, changes: DataFrame, keys: Sequence[str], progress: Progress) -> Commit:
        """See `Table`."""
        same_key = " AND ".join(f"t.{quoted(key)} <=> s.{quoted(key)}" for key in keys)
        columns = [name for name in changes.columns if name not in (KEEP, DELETE)]
        there = set(self.read().columns)
        inserted: dict[str, str | Column] = {quoted(name): F.col(f"s.{quoted(name)}") for name in columns}
        updated: dict[str, str | Column] = {
            quoted(name): self._kept_or_new(name) if name in there else F.col(f"s.{quoted(name)}")
            for name in columns
            if name not in keys
        }
        merge = (
            DeltaTable.forPath(self._spark, self.path)
            .alias("t")
            .merge(changes.alias("s"), same_key)
            .withSchemaEvolution()
            .whenMatchedDelete(f"s.{DELETE}")
            .whenMatchedUpdate(set=updated)
            .whenNotMatchedInsert(f"NOT s.{DELETE}", values=inserted)
        )
        with self._committing(progress):
            merge.execute()
        return self._committed(progress)

    @staticmethod
    def _kept_or_new(name: str) -> Column:
        is_kept = F.array_contains(f"s.{KEEP}", name)
        return F.when(is_kept, F.col(f"t.{quoted(name)}")).otherwise(F.col(f"s.{quoted(name)}"))

    def _snapshot(self) -> Any:
        """The newest snapshot: a cached one may be behind another run's commit."""
        jvm: Any = self._spark._jvm
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self._spark._jsparkSession, self.path)
        nothing = jvm.scala.Option.empty()
        return log.update(False, nothing, nothing)

    @contextmanager
    def _committing(self, progress: Progress) -> Iterator[None]:
        """Settings of one commit. They must not outlive it: Delta would silently skip the session's next write."""
        conf = self._spark.conf
        prefix = "spark.databricks.delta."
        conf.set(f"{prefix}commitInfo.userMetadata", progress.to_metadata())
        conf.set(f"{prefix}write.txnAppId", f"cdc_lake:{progress.layer}:{progress.epoch}")
        conf.set(f"{prefix}write.txnVersion", str(progress.commit))
        try:
            yield
        except DeltaConcurrentModificationException as exc:
            raise self._forestalled(progress, "another run") from exc
        finally:
            for setting in _COMMIT_SETTINGS:
                conf.unset(f"{prefix}{setting}")

    def _committed(self, progress: Progress) -> Commit:
        """Read back what stands in the table now: a write that another run forestalled is skipped without a word."""
        found = self.progress()
        if found is None or found.nonce != progress.nonce:
            raise self._forestalled(progress, f"run {found.run_id}" if found else "another run")
        return Commit(self.version(), found)

    def _forestalled(self, progress: Progress, by: str) -> TableLockedError:
        return TableLockedError(
            self.path,
            f"{by} committed while batch {progress.commit} was being made",
            "nothing of this run was written; run again once the other has ended",
        )
