"""Gold's models: a query each, in a file of its own, under a header that says what it reads and makes.

The header is YAML in the comment lines that the file begins with:

    -- name: film_revenue
    -- keys: [film_id, category]
    -- sources:
    --   film: pagila.public.film
    SELECT …
"""

import csv
import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from cdc_lake.config.base import Model, Name, in_words
from cdc_lake.config.storage import StorageConfig
from cdc_lake.config.table import Expectation
from cdc_lake.errors import ModelError

_MARK = "--"
_LARGEST_FILE = 1 << 20
_TODO = "see docs/reference/gold-models.md"

Topic = Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]+$")]
Interval = Annotated[str, Field(pattern=r"^[1-9][0-9]* (second|minute|hour|day|week)s?$")]
WATERMARK = "watermark"
"""The view that a window with a lateness brings along."""
EVERYTHING = "everything"
"""As what a source's rows name: a change of it concerns all groups."""


class FileSource(Model):
    """A small table that does not change on its own: a CSV file with a line of names, beside the model."""

    file: str = Field(pattern=r"\.csv$", description="Relative to the model's folder.")
    columns: dict[str, str] = Field(min_length=1, description="Its columns, name to Spark type; empty values are null.")


class Window(Model):
    """Which of a source's rows a group can hold, told by time: a tumbling or sliding window, or a day."""

    source: Name = Field(description="The source whose rows fall into it.")
    time: str = Field(description="Its column that says when.")
    start: str = Field(description="The result's column, one of `groups`, in which the window starts.")
    length: Interval = Field(description="How long it is, as in `10 minutes`.")
    lateness: Interval | None = Field(
        default=None, description="How far the view `watermark`, which the query then has, is behind the newest time."
    )


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
    sources: dict[Name, Topic | FileSource] = Field(
        min_length=1, description="What the SQL calls a silver table: its topic; or a file."
    )
    refresh: Literal["full", "incremental"] = Field(
        default="full", description="incremental: only the groups are made anew whose rows changed."
    )
    groups: tuple[str, ...] = Field(
        default=(), description="Columns of the result that rows are made together by; `keys`, if none are given."
    )
    touched: dict[Name, str] = Field(
        default_factory=dict,
        description="By source: a query of the groups that its rows are part of, or `everything`. The source is its "
        "changed rows only there.",
    )
    window: Window | None = None
    expectations: tuple[Expectation, ...] = Field(default=(), description="What rows of the result are to be.")
    table: StorageConfig = Field(default=StorageConfig(), description="What the table is held in, as silver's.")
    topic: TopicSink | None = Field(default=None, description="A topic that the table is sent to, too.")

    @field_validator("keys", "sources", "groups")
    @classmethod
    def _distinct(cls, names: Collection[str]) -> Collection[str]:
        """SQL takes `film` and `Film` for one name."""
        if len({name.casefold() for name in names}) < len(names):
            raise ValueError("two of the names are the same")
        return names

    @model_validator(mode="after")
    def _fits_its_refresh(self) -> Self:
        followed = {alias for alias, source in self.sources.items() if isinstance(source, str)}
        if self.refresh == "full":
            if self.groups or self.touched or self.window:
                raise ValueError("`groups`, `touched` and `window` belong to `refresh: incremental`")
        elif missing := followed - self.touched.keys():
            raise ValueError(
                f"`touched` does not say which groups the rows of {', '.join(sorted(missing))} are part of: give a "
                f"query of them, or `{EVERYTHING}`"
            )
        elif unknown := self.touched.keys() - followed:
            raise ValueError(f"`touched` names {', '.join(sorted(unknown))}, and no topic is called so in `sources`")
        if self.window and (self.window.source not in followed or self.window.start not in self.group_columns):
            raise ValueError("`window`: `source` has to be one of `sources` with a topic, `start` one of `groups`")
        if self.window and self.window.lateness and WATERMARK in map(str.casefold, self.sources):
            raise ValueError(f"`sources`: with a `lateness`, `{WATERMARK}` is what the query calls the watermark")
        return self

    @property
    def topics(self) -> dict[str, str]:
        """The silver tables by what the query calls them."""
        return {alias: source for alias, source in self.sources.items() if isinstance(source, str)}

    @property
    def files(self) -> dict[str, FileSource]:
        """The files by what the query calls them."""
        return {alias: source for alias, source in self.sources.items() if isinstance(source, FileSource)}

    @property
    def group_columns(self) -> tuple[str, ...]:
        """The columns that name a group."""
        return self.groups or self.keys


@dataclass(frozen=True)
class GoldModel:
    """A model.

    Attributes:
        file: where it is from.
        text: all of the file; the header is a comment to SQL, so that Spark's line numbers are the file's.
        header: read from it.
        files: the rows of the files that it reads, by what the query calls them; texts, null where there is none.
    """

    file: Path
    text: str
    header: Header
    files: Mapping[str, Sequence[tuple[str | None, ...]]]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the text and of the files' rows."""
        return hashlib.sha256(f"{self.text}{dict(self.files) or ''}".encode()).hexdigest()


def model_names(folder: Path) -> list[str]:
    """The names of the models in a folder, sorted; none when it does not exist."""
    return sorted(file.stem for file in folder.glob("*.sql"))


def read_model(file: Path) -> GoldModel:
    """Read a model and check its header.

    Raises:
        ModelError: there is no such file, or no header in it, it is not YAML, a key of it is missing, unknown or wrong,
            or it names another file.
    """
    if not file.is_file():
        raise ModelError(str(file), "there is no such model", "see `gold.models` in the settings")
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
    return GoldModel(file, text, header, {alias: _rows(file, source) for alias, source in header.files.items()})


def _rows(model: Path, source: FileSource) -> list[tuple[str | None, ...]]:
    """The rows of a CSV file, in the order of the columns that the header names.

    Raises:
        ModelError: it is not there, is too large, or has other columns.
    """
    file = model.parent / source.file
    try:
        size = file.stat().st_size
        if size > _LARGEST_FILE:
            todo = "bring it into silver, and name its topic"
            raise ModelError(str(file), f"it has {size} bytes, and a model's file at most {_LARGEST_FILE}", todo)
        with file.open(encoding="utf-8", newline="") as opened:
            reader = csv.DictReader(opened, strict=True)
            rows, names = list(reader), reader.fieldnames or []
    except (OSError, UnicodeDecodeError, csv.Error) as exc:
        raise ModelError(str(file), f"it cannot be read: {exc}", f"see `sources` in {model}") from exc
    if sorted(names) != sorted(source.columns) or any(None in row or None in row.values() for row in rows):
        listed = ", ".join(source.columns)
        raise ModelError(str(file), f"its lines do not have the columns {listed}", f"mend it, or `sources` in {model}")
    return [tuple(row[name] or None for name in source.columns) for row in rows]
