"""Gold's models: a query each, in a file of its own, under a header that says what it reads and makes.

The header is YAML in the comment lines that the file begins with:

    -- name: film_revenue
    -- keys: [film_id, category]
    -- sources:
    --   film: pagila.public.film
    SELECT …
"""

import hashlib
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field, ValidationError, field_validator

from cdc_lake.config import Model, in_words
from cdc_lake.errors import ModelError

_MARK = "--"
_TODO = "see `Gold` in docs/design.md"

Name = Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")]
Topic = Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]+$")]


class TopicSink(Model):
    """A topic that says what the model's table says: a record for a row that changed, a tombstone for one that went."""

    topic: Topic = Field(description="Its name.")
    framing: Literal["id4", "id8", "headers", "bare"] = Field(
        default="id4",
        description="How records name their schema: a zero byte and 4 or 8 bytes of id, Apicurio's headers, or not.",
    )
    compatibility: Literal["backward", "forward", "full", "none"] = Field(
        default="backward",
        description="What new versions of the value's schema have to be where the registry asks nothing.",
    )
    create: bool = Field(default=True, description="Create the topic when there is none; else that is an error.")
    partitions: int = Field(default=1, ge=1, description="Of a topic that is created.")
    replication: int | None = Field(
        default=None, ge=1, description="Of the same; the broker's own default when not said."
    )


class Header(Model):
    """What a model's file says of it."""

    name: Name = Field(description="The table's, and the file's without `.sql`.")
    description: str = Field(default="", description="What a row says, for people.")
    keys: tuple[str, ...] = Field(min_length=1, description="Columns of the result: no two rows share them all.")
    sources: dict[Name, Topic] = Field(min_length=1, description="What the SQL calls a silver table: its topic.")
    topic: TopicSink | None = Field(default=None, description="A topic that the table is sent to, too.")

    @field_validator("keys", "sources")
    @classmethod
    def _distinct(cls, names: tuple[str, ...] | dict[str, str]) -> tuple[str, ...] | dict[str, str]:
        """SQL takes `film` and `Film` for one name."""
        if len({name.casefold() for name in names}) < len(names):
            raise ValueError("two of the names are the same")
        return names


@dataclass(frozen=True)
class GoldModel:
    """A model.

    Attributes:
        file: where it is from.
        text: all of the file; the header is a comment to SQL, so that Spark's line numbers are the file's.
        header: read from it.
    """

    file: Path
    text: str
    header: Header

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def model_names(folder: Path) -> list[str]:
    """The names of the models in a folder, sorted; none when it does not exist."""
    return sorted(file.stem for file in folder.glob("*.sql"))


def read_model(file: Path) -> GoldModel:
    """Read a model and check its header.

    Raises:
        ModelError: there is no header, it is not YAML, a key of it is missing, unknown or wrong, or it names another
            file.
    """
    text = file.read_text(encoding="utf-8")
    lines = takewhile(lambda line: line.startswith(_MARK), text.splitlines())
    try:
        content = yaml.safe_load("\n".join(line.removeprefix(_MARK) for line in lines))
    except yaml.YAMLError as exc:
        raise ModelError(str(file), f"the comment lines it begins with are not YAML: {exc}", _TODO) from exc
    if not isinstance(content, dict):
        raise ModelError(
            str(file), "it has no header", f"begin it with the lines `-- name: {file.stem}`, `-- keys:`, `-- sources:`"
        )
    try:
        header = Header.model_validate(content)
    except ValidationError as exc:
        raise ModelError(str(file), in_words(exc, Header), _TODO) from exc
    if header.name != file.stem:
        raise ModelError(str(file), f"`name`: `{header.name}` is not the name of the file", "give both the same name")
    return GoldModel(file, text, header)
