"""A silver table's memory, in a Delta table of its own: what its rows no longer show and the fold still has to know.

Each commit of silver names the version of the side table that belongs to it, its pin. What stands there beyond the pin
was left by a run that ended between the two commits, and does not count: so the pair is one commit.
"""

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc_lake.columns import (
    DELETE,
    IMAGE_ENTRY,
    OLD_KINDS,
    REJECTED_ENTRY,
    SEEN,
    SIDE,
    SIDE_KINDS,
    SNAPSHOT_ID,
    START_ID,
)
from cdc_lake.errors import DamagedFileError, TableLockedError
from cdc_lake.storage.files import Storage
from cdc_lake.tables.delta import CONFLICTS, PROPERTIES, USER_METADATA, DeltaLakeTable, commit_settings, refusal
from cdc_lake.tables.newest import LOG_FOLDER
from cdc_lake.tables.progress import SidePin, SilverProgress

DAY_MS = 86_400_000
MOST_FILES = 64
"""A table of more files is written anew: a merge opens each of them."""


class SideTable:
    """A side table by path; its columns are `columns.SIDE`.

    Args:
        spark: the session that reads and writes it.
        path: its folder or URL.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.path = path
        self._spark = spark
        self._table: DeltaLakeTable[SilverProgress] = DeltaLakeTable(spark, path)

    def read(self, pin: SidePin | None) -> DataFrame:
        """The entries that belong to a commit of silver; none without a pin.

        Raises:
            DamagedFileError: the pinned version is not there any more.
        """
        if pin is None:
            nothing = [F.lit(None).cast(kind).alias(name) for name, kind in SIDE.items()]
            return self._spark.range(0).select(*nothing).where(F.lit(False))
        head = self._newest(pin)
        try:
            entries = self._table.read(as_of=pin.version)
        except (PySparkException, Py4JJavaError) as exc:
            raise self._lost(f"version {pin.version} cannot be read any more") from exc
        if pin.version != head:
            self._check_files(pin, entries)
        return _carried_forward(entries) if _is_old(entries) else entries

    def write(self, pin: SidePin | None, entries: DataFrame, *, at_ms: int, memory_days: float) -> SidePin | None:
        """Bring entries to their new state, upon those that belong to the last commit of silver, in one commit.

        Args:
            pin: the last commit's; none before the first entry.
            entries: `columns.SIDE` and `__delete` (whether the entry goes), at most one row per (kind, id).
            at_ms: when this is, ms.
            memory_days: entries that are older by their `at_ms` go too, once a day; not those of rejected events.

        Returns:
            The pin for the next commit of silver; the same one when there is nothing to write.

        Raises:
            TableLockedError: another run has written the table meanwhile.
            DamagedFileError: the pinned version is not there any more.
        """
        entries = entries.localCheckpoint()
        found = entries.select("kind", DELETE).distinct().collect()
        kinds = {row["kind"] for row in found if not row[DELETE]}
        if not (kinds if pin is None else found):
            return pin
        head = self._newest(pin)
        is_merge = pin is not None and pin.version == head and at_ms - pin.swept_ms < DAY_MS and self._takes_more(pin)
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
        """Remove the files that no version needs that silver may be restored to; their bytes.

        Args:
            pin: the last commit's. Where a run left something beyond it, nothing is removed: what is pinned is not the
                newest version then, and old enough its files would go.

        Raises:
            DamagedFileError: the pinned table is not there any more.
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
        """The table then holds what the pin says, without what is old, and the entries; in few files."""
        stays = (F.col("at_ms") >= forget_before_ms) | (F.col("kind") == REJECTED_ENTRY)
        kept = self.read(pin).where(stays).join(entries, ["kind", "id"], "left_anti")
        rows = kept.unionByName(entries.where(~F.col(DELETE)).select(*SIDE))
        rows.write.format("delta").mode("overwrite").options(**PROPERTIES, overwriteSchema="true").save(self.path)

    def _version_of(self, commit: str, head: int) -> int:
        """The version that a commit upon `head` made; `head` when there was nothing to change."""
        if (self._table.commit_info(head + 1) or {}).get("userMetadata") == commit:
            return head + 1
        if self._table.version() != head:
            raise self._locked()
        return head

    def _newest(self, pin: SidePin | None) -> int:
        """The newest version, of the pinned table if there is a pin; -1 when there is no table."""
        if pin is None:
            return self._table.version() if self._table.exists() else -1
        if not self._table.exists():
            raise self._lost("the table is gone")
        if self._table.id() != pin.id:
            raise self._lost("this is another table than the one that silver names")
        said = self._table.commit_info(pin.version) if pin.nonce else None
        if said is not None and said.get("userMetadata") != pin.nonce:
            raise self._lost(f"version {pin.version} is not the one that silver names")
        return self._table.version()

    def _takes_more(self, pin: SidePin) -> bool:
        """Whether it has few files, in the columns of today."""
        entries = self._table.read(as_of=pin.version)
        return not _is_old(entries) and len(entries.inputFiles()) <= MOST_FILES

    def _check_files(self, pin: SidePin, entries: DataFrame) -> None:
        """Files of a version that is not the newest may have been vacuumed; a scan would say so much later."""
        there = Storage(self._spark).names(self.path)
        if {file.rpartition("/")[2] for file in entries.inputFiles()} - set(there):
            raise self._lost(f"files of version {pin.version} were vacuumed")

    @contextmanager
    def _committing(self) -> Iterator[str]:
        """Name a commit, so that it can be told from another run's."""
        commit = uuid.uuid4().hex
        # The entries are computed already: Delta need not keep a copy of them.
        settings = {USER_METADATA: commit, "merge.materializeSource": "none"}
        try:
            with commit_settings(self._spark, settings):
                yield commit
        except CONFLICTS as exc:
            raise self._locked() from exc
        except (PySparkException, Py4JJavaError) as exc:
            if known := refusal(self.path, exc):
                raise known from exc
            raise

    def _locked(self) -> TableLockedError:
        return TableLockedError(
            self.path,
            "another run wrote the table at the same time",
            "silver does not see what this run wrote; run again once the other has ended",
        )

    def _lost(self, what: str) -> DamagedFileError:
        return DamagedFileError(f"{self.path}/{LOG_FOLDER}", f"{what}, and with it silver's memory of its deletes")


def _is_old(entries: DataFrame) -> bool:
    return SEEN not in entries.columns


def _in_order(kinds: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(kinds, key=SIDE_KINDS.index))


def _carried_forward(entries: DataFrame) -> DataFrame:
    """Entries as versions up to 0.1.0 wrote them, in the columns and kinds of today."""
    entries = entries.withColumns({name: F.lit(None).cast(SIDE[name]) for name in ("move", SEEN)})
    kind, rest = F.col("kind"), F.col("id")
    for old, new in OLD_KINDS.items():
        kind = F.when(F.col("kind") == old, new).otherwise(kind)
    rest = F.when(F.col("kind") == "truncated", START_ID).when(F.col("kind") == "snapshot", SNAPSHOT_ID).otherwise(rest)
    # A key may have been remembered twice: that its row is gone counts.
    gone = entries.where(F.col("kind") == "deleted").select("id", F.lit("awaiting").alias("kind"))
    columns = {"kind": kind, "id": rest, "move": F.when(kind == IMAGE_ENTRY, F.col("id"))}
    return entries.join(gone, ["kind", "id"], "left_anti").select(
        *(columns.get(name, F.col(name)).alias(name) for name in SIDE)
    )
