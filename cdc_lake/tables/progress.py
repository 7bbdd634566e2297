"""The progress of a table: what it has consumed, stored in its own commits.

Each commit stores rows and progress together, so there is no checkpoint directory. docs/explanation/guarantees.md
"Progress in the commit".
"""

import json
import uuid
import zlib
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pyspark.sql import Column
from pyspark.sql import functions as F

from cdc_lake.errors import UnsupportedError

METADATA_KEY = "cdc_lake"
NO_TIMESTAMP_MS = -1
"""Kafka's value for records without a timestamp; also used for timestamps that Spark cannot represent."""


class SidePin(BaseModel):
    """The version of a silver table's side table that belongs to a commit.

    Attributes:
        kinds: the kinds of entries that it may contain (`columns.SIDE_KINDS`).
        swept_ms: when expired entries were last removed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    version: int
    nonce: str
    kinds: tuple[str, ...] = ()
    swept_ms: int


class Gap(BaseModel):
    """Offsets of a partition that a run skipped: with `--accept-loss`, because Kafka deleted them, or by `read.start`
    or `cdc-lake seek`.

    Attributes:
        topic_id: Kafka's topic id.
        start: the first missing offset.
        end: the first offset after the gap; null if the topic or the end of its log was deleted, so that the size of
            the gap is unknown.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    topic_id: str
    partition: int
    start: int
    end: int | None


class Identity(BaseModel):
    """What identifies a record of a partition apart from its offset: a log that loses its end assigns the same offsets
    to other records.

    Attributes:
        timestamp_ms: Kafka's.
        key, value: their CRC-32; null of a null.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    offset: int
    timestamp_ms: int
    key: int | None
    value: int | None

    @classmethod
    def of(cls, offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None) -> "Identity":
        """The identity of a record as Kafka's client returns it."""
        checksums = (None if data is None else zlib.crc32(data) for data in (key, value))
        return cls(offset=offset, timestamp_ms=timestamp_ms, **dict(zip(("key", "value"), checksums, strict=True)))


def identity(timestamp: str, key: str, value: str) -> Column:
    """An `Identity` as a struct, from the column `offset` and the named columns. Without a time: `NO_TIMESTAMP_MS`."""
    return F.struct(
        "offset",
        F.coalesce(F.unix_millis(timestamp), F.lit(NO_TIMESTAMP_MS)).alias("timestamp_ms"),
        F.crc32(key).alias("key"),
        F.crc32(value).alias("value"),
    )


class Sent(BaseModel):
    """How far a table was sent to a topic.

    Attributes:
        commit: all rows up to this commit of the table were sent.
        is_whole: false while the first send is incomplete: an unknown part of this commit was sent.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    commit: int
    is_whole: bool


class KeyFrom(BaseModel):
    """Where the events with the current primary key begin in a topic. Earlier events are ignored.

    Attributes:
        topic_id: Kafka's topic id; events of earlier topics are ignored.
        start: partition -> the first offset of the current key.
        whole: partition -> the end of the range of events in which every row occurs.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    topic_id: str
    start: dict[int, int]
    whole: dict[int, int]


class Progress(BaseModel):
    """The fields that the progress of all three layers shares: the run that committed, and the commit's number.

    Commits store a field under its alias, if it has one, so that existing lakes stay readable.

    Attributes:
        layer: bronze, silver or gold.
        run_id: the run that committed.
        nonce: identifies this attempt to commit. If the newest commit has another nonce, another run has committed.
        follows: the nonce of cdc_lake's previous commit; empty in the first.
        epoch: increases when a table is restored.
        commit: cdc_lake's commit number, never reused; in bronze it is the rows' `batch`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_by_name=True)

    layer: Literal["bronze", "silver", "gold"]
    run_id: str
    nonce: str = Field(default_factory=lambda: uuid.uuid4().hex)
    follows: str = ""
    epoch: int = 0
    commit: int

    def next(self, run_id: str, **own: Any) -> Self:
        """The progress of the next commit, which consumes nothing more.

        Args:
            own: the fields that change, by name.
        """
        new = {"run_id": run_id, "nonce": uuid.uuid4().hex, "follows": self.nonce, "commit": self.commit + 1}
        return self.model_copy(update=new | own)

    def to_metadata(self) -> str:
        """The text that the commit stores."""
        return json.dumps({METADATA_KEY: self.model_dump(mode="json", by_alias=True)}, separators=(",", ":"))

    @staticmethod
    def from_metadata(text: str | None) -> "AnyProgress | None":
        """The progress in a commit's metadata; none if cdc_lake did not make the commit.

        Raises:
            UnsupportedError: an incompatible version of cdc_lake made it.
        """
        try:
            ours = json.loads(text or "null")[METADATA_KEY]
        except (json.JSONDecodeError, KeyError, TypeError):
            return None
        try:
            return _MODELS[ours["layer"]].model_validate(ours)
        except (ValidationError, KeyError, TypeError, AttributeError) as exc:
            raise UnsupportedError(
                "the table's newest commit",
                "an incompatible version of cdc_lake wrote its progress",
                "use that version, or a newer one",
            ) from exc


class BronzeProgress(Progress):
    """How far a bronze table has read its topic.

    Attributes:
        offsets: topic id -> partition -> the next offset to read. The topic's generations, oldest first.
        last: partition -> the last record read of the newest generation, unless offsets after it were skipped.
        log_ts: partition -> the running maximum of Kafka's timestamp, ms.
        sent: topic -> how far quarantined records were sent to it.
        key: the primary key's columns, name to Spark type; JSON keys are checked against them.
        kinds: `<side>.<frame>` -> the kind of schema id in these frames, once it is known.
        owners: `key` and `value` -> the names from which the Avro record names are derived, usually the topic.
        frames: the frames of the newest batch with records; the next batch probably has the same.
        are_ok: whether all records of that batch were ok; if so, those of the next one probably are.
        rows: the number of rows of this commit, from which silver plans its batches.
        record_bytes: the average size of key and value in the newest batch with records; null without one.
        bytes: the size of the records of all batches up to this one.
        gaps: the offsets that this commit skipped; the next commit does not repeat them.
        reread_to: partition -> the offset up to which the newest generation is being read again.
        total_rows: rows of all commits up to this one; null if the progress was lost and restored from the rows.
    """

    layer: Literal["bronze"] = "bronze"
    offsets: dict[str, dict[int, int]] = {}
    last: dict[int, Identity] = {}
    log_ts: dict[int, int] = {}
    sent: dict[str, Sent] = {}
    key: dict[str, str] = {}
    kinds: dict[str, str] = {}
    owners: dict[str, tuple[str, ...]] = {}
    frames: tuple[str, ...] = ()
    are_ok: bool = True
    rows: int = 0
    record_bytes: int | None = None
    bytes: int = 0
    gaps: tuple[Gap, ...] = ()
    reread_to: dict[int, int] = Field(default={}, validation_alias="again", serialization_alias="again")
    total_rows: int | None = None

    @property
    def position(self) -> dict[int, int]:
        """Partition -> the next offset to read, of the newest generation."""
        return list(self.offsets.values())[-1]

    def next(self, run_id: str, **own: Any) -> Self:
        """The progress of the next commit, which has no rows and no gaps; see `Progress.next`."""
        return super().next(run_id, **{"rows": 0, "gaps": ()} | own)


class DerivedProgress(Progress):
    """How far a silver or gold table has read other tables.

    Attributes:
        sources: id of each source table -> the last commit number that was read.
        nonces: id of each table in `sources` -> the nonce of that commit, because a table restored from a backup may
            reuse its number.
    """

    sources: dict[str, int] = {}
    nonces: dict[str, str] = {}

    def is_of(self, source: str, newest: Progress) -> bool | None:
        """Whether the last commit that was read of a source is in the source's current history.

        The newest commit has the nonces of two commits, its own and the one before. Example, if the newest is commit 7:

            read up to 8                          False: the source was restored to an earlier commit
            read up to 7, with 7's nonce          True
            read up to 7, with another nonce      False: another commit 7 was made after a restore from a backup
            read up to 6, with 7's `follows`      True
            read up to 5                          None: commit 7 does not have commit 5's nonce

        Args:
            source: the table's id.
            newest: the progress in its newest commit.

        Returns:
            False if the source was deleted, restored or replaced by a backup since; None if this depends on the
            commits in between.
        """
        reached = self.sources.get(source)
        if reached is None or reached > newest.commit:
            return False
        if source not in self.nonces:
            return True
        nonce = {newest.commit: newest.nonce, newest.commit - 1: newest.follows}.get(reached)
        return nonce == self.nonces[source] if nonce else None


class SilverProgress(DerivedProgress):
    """How far a silver table has merged bronze, and its columns.

    Attributes:
        keys: the primary key's columns, sorted.
        key_from: where the events with this key begin, if the primary key changed.
        variants: variant column -> its target column (`silver.evolution`).
        retired: the columns that the source no longer sends.
        defaulted: the columns for which a run warned that nulls arrive as the column's default.
        side: the version of the side table that belongs to this commit; None before the first entry.
        reread_to: with `merge.mode: append`, partition -> the offset up to which bronze reads records again that
            silver has.
        offsets: bronze's `offsets` at the last batch that was merged.
    """

    layer: Literal["silver"] = "silver"
    keys: tuple[str, ...] = ()
    key_from: KeyFrom | None = None
    variants: dict[str, str] = Field(default={}, validation_alias="beside", serialization_alias="beside")
    retired: tuple[str, ...] = Field(default=(), validation_alias="gone", serialization_alias="gone")
    defaulted: tuple[str, ...] = ()
    side: SidePin | None = None
    reread_to: dict[int, int] = Field(default={}, validation_alias="again", serialization_alias="again")
    offsets: dict[str, dict[int, int]] = {}

    def ahead_of(self, bronze: BronzeProgress) -> dict[int, tuple[int, int]]:
        """The offsets that silver has merged and bronze has not read, because bronze was restored or replaced.

        A topic id that silver does not know is newer than everything that silver has merged.

        Examples, with offsets as topic id -> partition -> next offset:

            silver {a: {0: 5, 1: 7}}         bronze {a: {0: 4, 1: 7}}         {0: (4, 5)}: bronze lacks offset 4
            silver {a: {0: 5}, b: {0: 2}}    bronze {a: {0: 5}}               {0: (0, 2)}: bronze lacks all of topic b
            silver {a: {0: 5}}               bronze {a: {0: 3}, b: {0: 1}}    {}: b is new, so bronze has gone on

        Returns:
            Partition -> bronze's next offset, and silver's.
        """
        newest = list(bronze.offsets)[-1]
        if newest not in self.offsets:
            return {}
        reached = bronze.position if newest == list(self.offsets)[-1] else {}
        merged = list(self.offsets.values())[-1]
        return {p: (reached.get(p, 0), end) for p, end in merged.items() if reached.get(p, 0) < end}


class GoldProgress(DerivedProgress):
    """The state of silver that a gold table was computed from.

    Attributes:
        epochs: id of each silver table read -> its epoch; a RESTORE changes silver's rows, but no commit number.
        versions: id of each silver table read -> the version that was read.
        sent: topic -> how far the table was sent to it.
        model: the fingerprint of the model.
    """

    layer: Literal["gold"] = "gold"
    epochs: dict[str, int] = {}
    versions: dict[str, int] = {}
    sent: dict[str, Sent] = {}
    model: str = ""


AnyProgress = BronzeProgress | SilverProgress | GoldProgress
_MODELS: dict[str, type[AnyProgress]] = {"bronze": BronzeProgress, "silver": SilverProgress, "gold": GoldProgress}
