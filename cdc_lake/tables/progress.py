"""What a table has consumed, as it stands in the table's own commits.

There is no checkpoint folder: the rows and the progress they stand for are one commit, so neither is ever there
without the other. docs/design.md "Progress in the commit".
"""

import json
import uuid
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cdc_lake.errors import UnsupportedError

METADATA_KEY = "cdc_lake"


class Progress(BaseModel):
    """The progress a commit carries, and who made it.

    Attributes:
        layer: bronze or silver.
        run_id: the run that committed.
        nonce: this one attempt to commit; somebody else's in the newest commit means that they won.
        epoch: goes up when a table is restored, so that commit numbers start a new line.
        commit: the table's own commit number; in bronze it is the rows' `batch`. Never used twice.
        offsets: bronze: topic id -> partition -> the next offset to read.
        log_ts: bronze: partition -> the running maximum of Kafka's timestamp, ms.
        sources: silver: id of the bronze table -> the last batch folded in.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    layer: Literal["bronze", "silver"]
    run_id: str
    nonce: str = Field(default_factory=lambda: uuid.uuid4().hex)
    epoch: int = 0
    commit: int
    offsets: dict[str, dict[int, int]] = {}
    log_ts: dict[int, int] = {}
    sources: dict[str, int] = {}

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
