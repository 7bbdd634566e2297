"""The progress of a table: what it has consumed, stored in its own commits.

Each commit stores rows and progress together, so there is no checkpoint directory. docs/explanation/guarantees.md
"Progress in the commit".
"""

import json
import uuid
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cdc_lake.decode.identity import Identity
from cdc_lake.errors import UnsupportedError

METADATA_KEY = "cdc_lake"


class SidePin(BaseModel):
    """The version of a silver table's side table that belongs to a commit.

    Attributes:
        id: the side table's id.
        version: its version.
        nonce: of that version's commit.
        kinds: the kinds of entries that it may have (`columns.SIDE_KINDS`).
        swept_ms: when expired entries were last removed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    version: int
    nonce: str
    kinds: tuple[str, ...] = ()
    swept_ms: int


class Gap(BaseModel):
    """Offsets of a partition that a run skipped on request: because they were deleted before they were read, or by
    `start`, `seek` or `--accept-loss`.

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


class Sent(BaseModel):
    """How far a table was sent to a topic.

    Attributes:
        commit: all rows up to this commit of the table were sent.
        is_whole: false if the first send began at this commit, and an unknown part of it was sent.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    commit: int
    is_whole: bool


class KeyFrom(BaseModel):
    """Where the events of the current primary key begin in a topic. Events before have another key and are ignored.

    Attributes:
        topic_id: Kafka's topic id; events of earlier topics are ignored.
        start: partition -> the first offset of the current key.
        whole: partition -> the end of the events that contain every row.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    topic_id: str
    start: dict[int, int]
    whole: dict[int, int]


class Progress(BaseModel):
    """Who made a commit, and its number: what the progress of all three layers shares.

    Attributes:
        layer: bronze, silver or gold.
        run_id: the run that committed.
        nonce: of this attempt to commit. If the newest commit has another one, another run has won.
        follows: the nonce of our previous commit; empty in the first.
        epoch: increases when a table is restored, so that commit numbers start a new line.
        commit: the table's own commit number, never used twice; in bronze it is the rows' `batch`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    layer: Literal["bronze", "silver", "gold"]
    run_id: str
    nonce: str = Field(default_factory=lambda: uuid.uuid4().hex)
    follows: str = ""
    epoch: int = 0
    commit: int

    def next(self, run_id: str, **own: Any) -> Self:
        """The progress of the next commit, which consumes nothing more.

        Args:
            run_id: the run that commits.
            own: values that differ, by name.
        """
        new = {"run_id": run_id, "nonce": uuid.uuid4().hex, "follows": self.nonce, "commit": self.commit + 1}
        return self.model_copy(update=new | own)

    def to_metadata(self) -> str:
        """The text that goes into the commit."""
        return json.dumps({METADATA_KEY: self.model_dump(mode="json")}, separators=(",", ":"))

    @staticmethod
    def from_metadata(text: str | None) -> "AnyProgress | None":
        """The progress in a commit's metadata; none if cdc_lake did not make the commit.

        Raises:
            UnsupportedError: a version of cdc_lake made it whose progress this version cannot read.
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
    """What a bronze table has read of its topic.

    Attributes:
        offsets: topic id -> partition -> the next offset to read; the ids in the order of their generations.
        last: partition -> the last record read of the newest generation, if nothing was passed over behind it.
        log_ts: partition -> the running maximum of Kafka's timestamp, ms.
        sent: topic -> how far quarantined records were sent to it.
        key: the primary key's columns, name to Spark type, by which JSON keys are judged.
        kinds: `<side>.<frame>` -> the kind of id that the numbers in its frames are, once that is settled.
        owners: `key` and `value` -> what the topic's records are named after: mostly the topic.
        frames: the frames of the newest batch with records; those of the next one are probably the same.
        are_ok: whether all records of that batch were ok, as those of the next one probably are, then.
        rows: rows of this commit; silver plans by it before it reads them.
        record_bytes: average size of a record's key and value in the newest batch with records; null before.
        bytes: of the records of all batches up to this one.
        gaps: offsets that this commit passed over, as the operator allowed; not carried forward.
        again: partition -> the offset up to which the newest generation was read before, where it is being read again.
        total_rows: rows of all commits up to this one; null if the progress was once lost, and derived from the rows.
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
    rows: int | None = None
    record_bytes: int | None = None
    bytes: int = 0
    gaps: tuple[Gap, ...] = ()
    again: dict[int, int] = {}
    total_rows: int | None = None

    @property
    def position(self) -> dict[int, int]:
        """Partition -> the next offset to read, of the newest generation."""
        return list(self.offsets.values())[-1]

    def next(self, run_id: str, **own: Any) -> Self:
        """The progress of the next commit, which has no rows and no gaps; see `Progress.next`."""
        return super().next(run_id, **{"rows": 0, "gaps": ()} | own)


class DerivedProgress(Progress):
    """What a silver or gold table has read of other tables.

    Attributes:
        sources: id of each table read -> the commit number of it that was read last.
        nonces: id of each table in `sources` -> the nonce of that commit, because a table that is restored from a
            backup gives its number to another commit.
    """

    sources: dict[str, int] = {}
    nonces: dict[str, str] = {}

    def is_of(self, source: str, newest: Progress) -> bool | None:
        """Whether the commit of a source that was read is in the history that the source has now.

        Args:
            source: the table's id.
            newest: the progress in its newest commit.

        Returns:
            False if the source was deleted, restored or replaced by a backup since; None if only the commits between
            the two can tell.
        """
        reached = self.sources.get(source)
        if reached is None or reached > newest.commit:
            return False
        if source not in self.nonces:
            return True
        found = {newest.commit: newest.nonce, newest.commit - 1: newest.follows}.get(reached)
        return found == self.nonces[source] if found else None


class SilverProgress(DerivedProgress):
    """What a silver table has folded of bronze, and its columns.

    Attributes:
        keys: the primary key's columns, sorted.
        key_from: where the events of this key begin, if the primary key was another one before.
        beside: column -> the one that it holds values of another type for.
        gone: the columns that the source no longer sends.
        defaulted: the columns whose nulls arrive as their defaults, of which the user was warned.
        side: the side table that belongs to this commit; none before the first entry.
        again: with `merge.mode: append`, partition -> the offset to which silver has records that bronze reads again.
        offsets: bronze's `offsets` at the last batch that was merged.
    """

    layer: Literal["silver"] = "silver"
    keys: tuple[str, ...] = ()
    key_from: KeyFrom | None = None
    beside: dict[str, str] = {}
    gone: tuple[str, ...] = ()
    defaulted: tuple[str, ...] = ()
    side: SidePin | None = None
    again: dict[int, int] = {}
    offsets: dict[str, dict[int, int]] = {}

    def ahead_of(self, bronze: BronzeProgress) -> dict[int, tuple[int, int]]:
        """What silver has merged and bronze has not read, which happens if bronze was restored or replaced.

        A topic id that silver has not seen is newer than all that it has merged.

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
    """What a gold table was made from.

    Attributes:
        epochs: id of each silver table read -> its epoch; a RESTORE of silver changes its rows and no number.
        versions: id of each silver table read -> the version of it that was read.
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
