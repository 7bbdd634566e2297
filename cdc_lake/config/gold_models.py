"""Gold models: one SQL query per file, with a header that names its sources and its result.

The header is YAML in the comment lines at the top of the file:

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
_CURE = "see docs/reference/gold-models.md"

Topic = Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]+$")]
Interval = Annotated[str, Field(pattern=r"^[1-9][0-9]* (second|minute|hour|day|week)s?$")]
WATERMARK = "watermark"
"""The view that a window with a lateness adds to the query's sources."""
EVERYTHING = "everything"
"""Value of `touched` for a source whose changes affect all groups."""


class FileSource(Model):
    """A small, static table: a CSV file with a header line, stored with the model."""

    file: str = Field(pattern=r"\.csv$", description="Path relative to the model's folder.")
    columns: dict[str, str] = Field(
        min_length=1, description="Maps column names to Spark types. Empty values are null."
    )


class Window(Model):
    """The time range of a group's source rows: a tumbling or sliding window, or a day."""

    source: Name = Field(description="Names the source whose rows are in the window.")
    time: str = Field(description="Names the source's time column.")
    start: str = Field(description="Names the result column, one of `groups`, that has the window's start.")
    length: Interval = Field(description="Sets the window's length, such as `10 minutes`.")
    lateness: Interval | None = Field(
        default=None,
        description="Adds the view `watermark` to the query: the newest time of the source minus this interval.",
    )


class TopicSink(Model):
    """A topic that mirrors the model's table: a record per changed row, a tombstone per deleted row."""

    topic: Topic = Field(description="Names the topic.")
    framing: Literal["id4", "id8", "headers", "bare"] = Field(
        default="id4",
        description="Sets how records name their schema: a zero byte and a 4- or 8-byte ID, headers, or none (`bare`).",
    )
    compatibility: Literal["backward", "forward", "full", "none"] = Field(
        default="backward",
        description="Sets the compatibility of new value schemas if the registry has no rule of its own.",
    )
    create: bool = Field(default=True, description="Creates a missing topic. If false, a missing topic is an error.")
    partitions: int = Field(default=1, ge=1, description="Sets the partitions of a created topic.")
    replication: int | None = Field(
        default=None, ge=1, description="Sets the replication factor of a created topic (default: the broker's)."
    )


class Header(Model):
    """The header of a model's file."""

    name: Name = Field(description="Names the table. It must be the file's name without `.sql`.")
    description: str = Field(default="", description="Describes a row for readers.")
    keys: tuple[str, ...] = Field(min_length=1, description="Lists the result columns that identify a row.")
    sources: dict[Name, Topic | FileSource] = Field(
        min_length=1, description="Maps each name in the SQL to a topic (its silver table) or a file."
    )
    refresh: Literal["full", "incremental"] = Field(
        default="full",
        description="Sets what a refresh computes: all rows (`full`) or the groups with changed rows (`incremental`).",
    )
    groups: tuple[str, ...] = Field(
        default=(), description="Lists the result columns that define a group (default: `keys`)."
    )
    touched: dict[Name, str] = Field(
        default_factory=dict,
        description="Maps each source to a query that returns the groups of its changed rows, or to `everything`.",
    )
    window: Window | None = None
    expectations: tuple[Expectation, ...] = Field(
        default=(), description="Lists conditions that result rows must meet."
    )
    table: StorageConfig = Field(
        default=StorageConfig(), description="Sets the table's format, type and partitions, as for silver."
    )
    topic: TopicSink | None = Field(default=None, description="Also sends the table to a topic.")

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
                raise ValueError("`groups`, `touched` and `window` need `refresh: incremental`")
        elif missing := followed - self.touched.keys():
            raise ValueError(
                f"`touched` has no entry for {', '.join(sorted(missing))}; add a query of the affected groups, or "
                f"`{EVERYTHING}`"
            )
        elif unknown := self.touched.keys() - followed:
            raise ValueError(f"`touched` names {', '.join(sorted(unknown))}, which `sources` does not map to a topic")
        if self.window and (self.window.source not in followed or self.window.start not in self.group_columns):
            raise ValueError("`window`: `source` must be a source with a topic, and `start` one of `groups`")
        if self.window and self.window.lateness and WATERMARK in map(str.casefold, self.sources):
            raise ValueError(f"`sources`: with a `lateness`, the name `{WATERMARK}` is reserved for the watermark")
        return self

    @property
    def topics(self) -> dict[str, str]:
        """The topics of silver tables by their name in the query."""
        return {alias: source for alias, source in self.sources.items() if isinstance(source, str)}

    @property
    def files(self) -> dict[str, FileSource]:
        """The files by their name in the query."""
        return {alias: source for alias, source in self.sources.items() if isinstance(source, FileSource)}

    @property
    def group_columns(self) -> tuple[str, ...]:
        """The columns that define a group."""
        return self.groups or self.keys


@dataclass(frozen=True)
class GoldModel:
    """A model.

    Attributes:
        file: its path.
        text: the whole file. SQL ignores the header as a comment, so Spark's line numbers are the file's.
        header: parsed from the text.
        files: the rows of its CSV files by their name in the query; texts, null for empty values.
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
    """The names of the models in a folder, sorted; empty if the folder does not exist."""
    return sorted(file.stem for file in folder.glob("*.sql"))


def read_model(file: Path) -> GoldModel:
    """Read a model and check its header.

    Raises:
        ModelError: the file or its header is missing; the header is not YAML, has a missing, unknown or wrong key, or
            names another file.
    """
    if not file.is_file():
        raise ModelError(str(file), "the model does not exist", "check `gold.models` in the settings")
    text = file.read_text(encoding="utf-8")
    lines = takewhile(lambda line: line.startswith(_MARK), text.splitlines())
    try:
        content = yaml.safe_load("\n".join(line.removeprefix(_MARK) for line in lines))
    except yaml.YAMLError as exc:
        raise ModelError(str(file), f"the header is not valid YAML: {exc}", _CURE) from exc
    if not isinstance(content, dict):
        raise ModelError(
            str(file),
            "the header is missing",
            f"begin the file with `-- name: {file.stem}`, `-- keys:` and `-- sources:`",
        )
    try:
        header = Header.model_validate(content)
    except ValidationError as exc:
        raise ModelError(str(file), in_words(exc, Header), _CURE) from exc
    if header.name != file.stem:
        raise ModelError(str(file), f"`name: {header.name}` differs from the file's name", "use the same name")
    return GoldModel(file, text, header, {alias: _rows(file, source) for alias, source in header.files.items()})


def _rows(model: Path, source: FileSource) -> list[tuple[str | None, ...]]:
    """The rows of a CSV file, in the order of the header's columns."""
    file = model.parent / source.file
    try:
        size = file.stat().st_size
        if size > _LARGEST_FILE:
            cure = "load it into silver, and name its topic instead"
            raise ModelError(str(file), f"the file has {size} bytes; the limit is {_LARGEST_FILE}", cure)
        with file.open(encoding="utf-8", newline="") as opened:
            reader = csv.DictReader(opened, strict=True)
            rows, names = list(reader), reader.fieldnames or []
    except (OSError, UnicodeDecodeError, csv.Error) as exc:
        raise ModelError(str(file), f"the file cannot be read: {exc}", f"check `sources` in {model}") from exc
    if sorted(names) != sorted(source.columns) or any(None in row or None in row.values() for row in rows):
        listed = ", ".join(source.columns)
        raise ModelError(
            str(file), f"its lines do not have the columns {listed}", f"correct the file, or `sources` in {model}"
        )
    return [tuple(row[name] or None for name in source.columns) for row in rows]
