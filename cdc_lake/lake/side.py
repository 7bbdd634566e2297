"""The side table of a silver table: a Delta table with state that the fold needs and silver's rows do not have.

Each commit of silver pins the version of the side table that belongs to it. Later versions are ignored: their runs
ended between the two commits. So the two commits are atomic.
"""

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc_lake.columns import DELETE, REJECTED_ENTRY, SIDE, SIDE_KINDS
from cdc_lake.errors import DamagedFileError, TableLockedError
from cdc_lake.storage.hadoop import HadoopFiles
from cdc_lake.tables.delta import DeltaLakeTable
from cdc_lake.tables.delta_write import DEFAULTS, USER_METADATA, committing
from cdc_lake.tables.newest import LOG_FOLDER
from cdc_lake.tables.progress import SidePin, SilverProgress

DAY_MS = 86_400_000
MAX_FILES = 64
"""A table with more files is rewritten, because a merge opens each of them."""


class SideTable:
    """A side table by path; its columns are `columns.SIDE`."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.path = path
        self._spark = spark
        self._table: DeltaLakeTable[SilverProgress] = DeltaLakeTable(spark, path)

    def read(self, pin: SidePin | None) -> DataFrame:
        """The entries of a pinned version; empty without a pin.

        Raises:
            DamagedFileError: the pinned version is missing.
        """
        if pin is None:
            nothing = [F.lit(None).cast(spark_type).alias(name) for name, spark_type in SIDE.items()]
            return self._spark.range(0).select(*nothing).where(F.lit(False))
        head = self._newest(pin)
        try:
            entries = self._table.read(as_of=pin.version)
        except (PySparkException, Py4JJavaError) as exc:
            raise self._lost(f"version {pin.version} cannot be read") from exc
        if pin.version != head:
            self._check_files(pin, entries)
        return entries

    def write(self, pin: SidePin | None, entries: DataFrame, *, at_ms: int, memory_days: float) -> SidePin | None:
        """Upsert and delete entries of the pinned version, in one commit.

        Args:
            pin: the pin of silver's last commit; None before the first entry.
            entries: `columns.SIDE` and `__delete` (whether to delete the entry), at most one row per (kind, id).
            memory_days: entries whose `at_ms` is older are deleted once a day, except those of rejected events.

        Returns:
            The pin for silver's next commit; unchanged if there is nothing to write.

        Raises:
            TableLockedError: another run has written the table concurrently.
            DamagedFileError: the pinned version is missing.
        """
        entries = entries.localCheckpoint()
        changes = entries.select("kind", DELETE).distinct().collect()
        kinds = {row["kind"] for row in changes if not row[DELETE]}
        if not (kinds if pin is None else changes):
            return pin
        head = self._newest(pin)
        is_merge = pin is not None and pin.version == head and at_ms - pin.swept_ms < DAY_MS and self._can_merge(pin)
        with self._committing() as commit:
            if is_merge:
                self._merge(entries)
            else:
                self._rewrite(pin, entries, forget_before_ms=at_ms - round(memory_days * DAY_MS))
        version = self._version_of(commit, head)
        if pin is not None and is_merge:
            nonce = commit if version > head else pin.nonce
            kinds_now = _in_order({*kinds, *pin.kinds})
            return pin.model_copy(update={"version": version, "nonce": nonce, "kinds": kinds_now})
        kept = self._table.read(as_of=version).select("kind").distinct().collect()
        kinds_now = _in_order(row["kind"] for row in kept)
        return SidePin(id=self._table.id(), version=version, nonce=commit, kinds=kinds_now, swept_ms=at_ms)

    def vacuum(self, pin: SidePin | None) -> int:
        """Remove files that are no longer needed by retained versions.

        Args:
            pin: the pin of silver's last commit. If there are later versions, nothing is removed, because files of the
                pinned version might be.

        Returns:
            The number of bytes removed.

        Raises:
            DamagedFileError: the pinned table is missing.
        """
        return self._table.vacuum() if pin is not None and self._newest(pin) == pin.version else 0

    def _merge(self, entries: DataFrame) -> None:
        values: dict[str, str | Column] = {name: f"s.{name}" for name in SIDE}
        (
            DeltaTable.forPath(self._spark, self.path)
            .alias("t")
            .merge(entries.alias("s"), "t.kind = s.kind AND t.id = s.id")
            .whenMatchedDelete(f"s.{DELETE}")
            .whenMatchedUpdate(set=values)
            .whenNotMatchedInsert(f"NOT s.{DELETE}", values=values)
            .execute()
        )

    def _rewrite(self, pin: SidePin | None, entries: DataFrame, *, forget_before_ms: int) -> None:
        """Replace the table's content with the pinned version without expired entries, and the new entries."""
        stays = (F.col("at_ms") >= forget_before_ms) | (F.col("kind") == REJECTED_ENTRY)
        kept = self.read(pin).where(stays).join(entries, ["kind", "id"], "left_anti")
        rows = kept.unionByName(entries.where(~F.col(DELETE)).select(*SIDE))
        rows.write.format("delta").mode("overwrite").options(**DEFAULTS, overwriteSchema="true").save(self.path)

    def _version_of(self, commit: str, head: int) -> int:
        """The version of a commit after `head`; `head` if the commit changed nothing."""
        if (self._table.commit_info(head + 1) or {}).get("userMetadata") == commit:
            return head + 1
        if self._table.version() != head:
            raise self._locked()
        return head

    def _newest(self, pin: SidePin | None) -> int:
        """The newest version, after checking that the table is the pinned one; -1 if there is no table."""
        newest = self._table.version()
        if pin is None:
            return newest
        if newest < 0:
            raise self._lost("the table is missing")
        if self._table.id() != pin.id:
            raise self._lost("silver refers to another table")
        info = self._table.commit_info(pin.version)
        if info is not None and info.get("userMetadata") != pin.nonce:
            raise self._lost(f"version {pin.version} is not the commit that silver refers to")
        return newest

    def _can_merge(self, pin: SidePin) -> bool:
        """Whether the pinned version has few files."""
        return len(self._table.read(as_of=pin.version).inputFiles()) <= MAX_FILES

    def _check_files(self, pin: SidePin, entries: DataFrame) -> None:
        """Check that an older version's files were not vacuumed, which a scan would report much later."""
        names = HadoopFiles(self._spark).names(self.path)
        if {file.rpartition("/")[2] for file in entries.inputFiles()} - set(names):
            raise self._lost(f"files of version {pin.version} were vacuumed")

    @contextmanager
    def _committing(self) -> Iterator[str]:
        """A context for a commit with a unique name, which distinguishes it from another run's."""
        commit = uuid.uuid4().hex
        # The entries are already computed, so Delta need not materialize them.
        settings = {USER_METADATA: commit, "merge.materializeSource": "none"}
        with committing(self._spark, self.path, settings, self._locked):
            yield commit

    def _locked(self) -> TableLockedError:
        return TableLockedError(
            self.path,
            "another run wrote the table at the same time",
            "this batch was not committed; run again when the other run has ended",
        )

    def _lost(self, what: str) -> DamagedFileError:
        return DamagedFileError(f"{self.path}/{LOG_FOLDER}", f"{what}, so silver's record of its deletes is lost")


def _in_order(kinds: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(kinds, key=SIDE_KINDS.index))
