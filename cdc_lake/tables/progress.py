"""What a table has consumed, as it stands in the table's own commits.

There is no checkpoint folder: the rows and the progress they stand for are one commit, so neither is ever there
without the other. docs/design.md "Progress in the commit".
"""

import json
import uuid
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cdc_lake.decode.identity import Identity
from cdc_lake.errors import UnsupportedError

METADATA_KEY = "cdc_lake"


class SidePin(BaseModel):
    """The state of a silver table's side table that belongs to a commit.

    Attributes:
        id: the side table's identity.
        version: its version.
        nonce: of the commit that made that version; versions up to 0.1.0 wrote none.
        kinds: the kinds of entries that may be there (`columns.SIDE_KINDS`); a reader of others need not look.
        swept_ms: when entries that are past their time were last removed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    version: int
    nonce: str = ""
    kinds: tuple[str, ...] = ()
    swept_ms: int


class Gap(BaseModel):
    """Offsets of one partition that a run was told to go on over: they were gone before they were read, or are skipped.

    Attributes:
        topic_id: Kafka's id of the topic.
        start: the first that is missing.
        end: the first that is there again; null when the topic, or the end of its log, is gone: nobody knows how many
            there were.
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
        is_whole: else not even that: the first sending began at this commit, and nobody knows how far it came.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    commit: int
    is_whole: bool


class KeyFrom(BaseModel):
    """Where in a topic the events of the primary key of today begin. Those before are of another key: none counts.

    Attributes:
        topic_id: Kafka's id of the topic; of topics that were there before it no event counts.
        start: partition -> the first offset that counts.
        whole: partition -> the next offset of what tells every row.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    topic_id: str
    start: dict[int, int]
    whole: dict[int, int]


class Progress(BaseModel):
    """The progress a commit carries, and who made it.

    Attributes:
        layer: bronze, silver or gold.
        run_id: the run that committed.
        nonce: this one attempt to commit; somebody else's in the newest commit means that they won.
        follows: the nonce of the commit of ours before it; versions up to 0.1.0 wrote none.
        epoch: goes up when a table is restored, so that commit numbers start a new line.
        commit: the table's own commit number; in bronze it is the rows' `batch`. Never used twice.
        offsets: bronze: topic id -> partition -> the next offset to read; the ids in the order of their generations.
        last: bronze: partition -> the last record read of the newest generation, if nothing was passed over behind it.
        log_ts: bronze: partition -> the running maximum of Kafka's timestamp, ms.
        sources: silver: id of the bronze table -> the last batch folded in; gold: id of each silver table read -> its
            commit number.
        nonces: silver, gold: id of each table in `sources` -> the nonce of that commit, because a table that is put
            back from a backup gives its number to another one. Versions up to 0.1.0 wrote none.
        epochs: gold: id of each silver table read -> its epoch; a RESTORE of silver changes its rows and no number.
        versions: gold: id of each silver table read -> the version of it that was read.
        sent: gold: topic -> how far the table was sent to it; bronze: the same of its quarantined records.
        model: gold: the fingerprint of the model.
        keys: silver: the primary key's columns, sorted.
        key_from: silver: where the events of this key begin, if it was another before.
        beside: silver: column -> the one beside which it holds values of another type.
        gone: silver: the columns that the source does not send any more.
        defaulted: silver: the columns whose nulls arrive as their defaults, as far as anybody was told.
        side: silver: its side table as it belongs to this commit; none before the first entry.
        kinds: bronze: `<side>.<frame>` -> the kind of id that the numbers in its frames are, once that is settled.
        owners: bronze: `key` and `value` -> what the topic's records are named after: mostly the topic.
        rows: bronze: how many this commit brought; silver plans by it before it has looked.
        record_bytes: bronze: what a record had on average in the newest batch with any, key and value; null before.
        gaps: bronze: what this commit went on over, if it was told to; not carried forward.
        again: bronze: partition -> the offset up to which the newest generation was read before, where it is being read
            again; silver of `mode: append`: the offset up to which it has records that bronze has yet to read again.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    layer: Literal["bronze", "silver", "gold"]
    run_id: str
    nonce: str = Field(default_factory=lambda: uuid.uuid4().hex)
    follows: str = ""
    epoch: int = 0
    commit: int
    offsets: dict[str, dict[int, int]] = {}
    last: dict[int, Identity] = {}
    log_ts: dict[int, int] = {}
    sources: dict[str, int] = {}
    nonces: dict[str, str] = {}
    epochs: dict[str, int] = {}
    versions: dict[str, int] = {}
    sent: dict[str, Sent] = {}
    model: str = ""
    keys: tuple[str, ...] = ()
    key_from: KeyFrom | None = None
    beside: dict[str, str] = {}
    gone: tuple[str, ...] = ()
    defaulted: tuple[str, ...] = ()
    side: SidePin | None = None
    kinds: dict[str, str] = {}
    owners: dict[str, tuple[str, ...]] = {}
    rows: int | None = None
    record_bytes: int | None = None
    gaps: tuple[Gap, ...] = ()
    again: dict[int, int] = {}

    @property
    def position(self) -> dict[int, int]:
        """Bronze: partition -> the next offset to read, of the newest generation."""
        return list(self.offsets.values())[-1]

    def next(self, run_id: str, **own: Any) -> "Progress":
        """The progress of a next commit that consumes nothing more.

        Args:
            run_id: the run that commits.
            own: what it says otherwise, by name.
        """
        new = {"run_id": run_id, "nonce": uuid.uuid4().hex, "follows": self.nonce, "commit": self.commit + 1}
        new |= {"rows": 0, "gaps": ()}
        return self.model_copy(update=new | own)

    def is_of(self, source: str, newest: "Progress") -> bool | None:
        """Whether what was consumed of a table is of the history that the table has now.

        Args:
            source: the table's id.
            newest: what its newest commit says.

        Returns:
            False if the table was wiped, restored or put back from a backup since; None if only the commits between
            the two can tell.
        """
        reached = self.sources.get(source)
        if reached is None or reached > newest.commit:
            return False
        if source not in self.nonces:
            return True
        found = {newest.commit: newest.nonce, newest.commit - 1: newest.follows}.get(reached)
        return found == self.nonces[source] if found else None

    def to_metadata(self) -> str:
        """The text that goes into the commit."""
        return json.dumps({METADATA_KEY: self.model_dump(mode="json")}, separators=(",", ":"))

    @classmethod
    def from_metadata(cls, text: str | None) -> "Progress | None":
        """The progress in a commit's metadata; none when the commit is not one of ours.

        Raises:
            UnsupportedError: it is one of ours, and of a version this one does not know.
        """
        try:
            ours = json.loads(text or "null")[METADATA_KEY]
        except (json.JSONDecodeError, KeyError, TypeError):
            return None
        try:
            return cls.model_validate(ours)
        except ValidationError as exc:
            raise UnsupportedError(
                "the table's newest commit", "its progress is of another version of cdc_lake", "use that version"
            ) from exc
