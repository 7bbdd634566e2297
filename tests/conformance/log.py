"""The event logs: the format of the YAML files, read strictly."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

LOGS = Path(__file__).parent / "logs"
Shape = Literal["envelope", "flat"]
Deletes = Literal["soft", "hard"]
OPTIONAL_STRING = ["null", "string"]
COLUMNS: Mapping[str, Any] = {
    "n": ["null", "int"],
    "body": OPTIONAL_STRING,
    "tags": ["null", {"type": "array", "items": OPTIONAL_STRING}],
    "data": ["null", "bytes"],
}
"""The columns of the table that most logs share, without its key."""
KEYS: Mapping[str, Any] = {"log": "string", "id": "int"}
"""Its key; a log only sets `id`."""
SETTINGS = (
    "truncates",
    "truncates_across_partitions",
    "soft_delete_values",
    "remove_missing_after_snapshot",
    "null_means_keep",
)


class LogError(Exception):
    """A file of logs is invalid; names the file, the log and the problem."""


class Model(BaseModel):
    """A handwritten mapping, in which an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Arrival(Model):
    """One record, as it arrives."""

    op: str = Field(default="", description="r c u d t, `tombstone`, or anything else that is no op.")
    control: Literal["heartbeat", "transaction", "schema_change", "notification", "signal", "message"] | None = None
    key: Any = Field(default=1, description="The row's `id`, or all columns of a key of the log's own.")
    values: dict[str, Any] = Field(default_factory=dict, description="What is left out is null.")
    unsent: list[str] = Field(default_factory=list, description="Columns that hold the placeholder.")
    position: int | dict[str, Any] | None = Field(
        default=None, description="Postgres: the LSN; other connectors: fields of `source`."
    )
    ts: int | None = Field(default=None, description="The source's time, ms since the log began; null: not known.")
    snapshot: str | None = Field(default=None, description="The snapshot marker.")
    moved_to: Any = Field(default=None, description="Key change, old half: the new key, in a header.")
    moved_from: Any = Field(default=None, description="Key change, new half: the old key, in a header.")
    partition: int = 0
    offset: int | None = Field(default=None, description="The next one in the partition unless given.")
    generation: int = Field(default=0, description="How often the topic has been created again before.")
    kafka_timestamp: int | None = Field(
        default=None, description="ms since the log began; the event's number if not given."
    )
    late_after: int | None = Field(
        default=None,
        description="Cannot be decoded when it arrives; can when the event of this number has arrived and been folded.",
    )
    poison: Literal["body", "schema", "frame", "text_key", "no_key", "null"] | None = Field(
        default=None, description="What is wrong with it for ever."
    )
    lost: bool = Field(default=False, description="The topic's retention removes it before it is read.")
    key_schema: Literal[1, 2] = Field(default=1, description="2: another schema id in the key's bytes.")
    keys: dict[str, Any] | None = Field(default=None, description="Avro types of another key than the log's.")
    columns: dict[str, Any] | None = Field(default=None, description="Avro types other than the log's, by column.")
    shape: Shape | None = Field(default=None, description="The event's own shape, for every shape of the run.")


class ExpectedRow(Model):
    """A row that the log must produce. Missing columns are null."""

    key: Any = 1
    values: dict[str, Any] = Field(default_factory=dict)
    deleted: bool = False
    unavailable: list[str] = Field(default_factory=list)
    last: int = Field(description="The number of the event that decided the row.")
    op: str = Field(default="", description="That event's, unless the end of a snapshot removed the row: `missing`.")
    order: int | Literal["none"] | None = Field(
        default=None, description="The number of the last streaming event that counts, if it is not `last`."
    )


class Expected(Model):
    """The result of the log, by the table's deletes mode."""

    soft: list[ExpectedRow]
    hard: list[ExpectedRow]


class Log(Model):
    """One log."""

    log: str = Field(pattern=r"^[\w-]+$")
    why: str = Field(min_length=10)
    events: list[Arrival] = Field(min_length=1)
    rows: list[ExpectedRow] | None = Field(
        default=None, description="Soft deletes. With hard ones it must be the same without the deleted rows."
    )
    expect: Expected | None = Field(default=None, description="Instead of `rows`, where that is not so.")
    stops: str | None = Field(
        default=None, description="Instead of rows: the code of the error that the run ends with."
    )
    settings: dict[str, Any] = Field(
        default_factory=dict, description="The table's, by the names in the configuration."
    )
    accept_loss: bool = False
    connector: Literal["postgresql", "mysql", "sqlserver", "oracle"] = "postgresql"
    columns: dict[str, Any] | None = Field(default=None, description="Avro types, of a table of its own.")
    keys: dict[str, Any] | None = Field(default=None, description="Likewise.")
    key_only: list[str] = Field(default_factory=list, description="Columns of the key that the row does not hold.")
    shapes: list[Shape] = Field(default_factory=lambda: list(get_args(Shape)))

    @model_validator(mode="before")
    @classmethod
    def _truncates_are_not_flattened(cls, given: Any) -> Any:
        events = given.get("events", ()) if isinstance(given, dict) else ()
        has_truncate = any(isinstance(event, dict) and event.get("op") == "t" for event in events)
        return {"shapes": ["envelope"], **given} if has_truncate else given

    @model_validator(mode="after")
    def _must_fit_together(self) -> "Log":
        for problem in self._problems():
            raise ValueError(problem)
        return self

    def _problems(self) -> Iterable[str]:
        if sum(given is not None for given in (self.rows, self.expect, self.stops)) != 1:
            yield "give one of `rows`, `expect` and `stops`"
        if unknown := set(self.settings) - set(SETTINGS):
            yield f"unknown settings {sorted(unknown)}"
        columns = set(self.table_columns)
        for number, event in enumerate(self.events, 1):
            if not event.op and event.control is None:
                yield f"event {number}: give `op` or `control`"
            if unknown := {*event.values, *event.unsent, *(event.columns or ())} - columns:
                yield f"event {number}: unknown columns {sorted(unknown)}"
            if set(event.values) & set(event.unsent):
                yield f"event {number}: a column is sent or unsent"
            for key in (event.key, event.moved_to, event.moved_from):
                if event.op != "t" and event.control is None and not self._is_key(key, event.keys or self.keys):
                    yield f"event {number}: {key} is no key of this table"
            if event.late_after is not None and not number <= event.late_after <= len(self.events):
                yield f"event {number}: late_after names an event before it, or none"
        for row in [row for deletes in get_args(Deletes) for row in self.expected(deletes)]:
            if unknown := {*row.values, *row.unavailable} - columns:
                yield f"row {row.key}: unknown columns {sorted(unknown)}"
            if not self._is_key(row.key, self.keys):
                yield f"row {row.key}: this is no key of this table"
            if not {row.last, row.order} - {None, "none"} <= set(range(1, len(self.events) + 1)):
                yield f"row {row.key}: `last` or `order` names no event"

    @staticmethod
    def _is_key(key: Any, columns: Mapping[str, Any] | None) -> bool:
        if key is None or columns is None:
            return key is None or isinstance(key, int)
        return isinstance(key, dict) and set(key) == set(columns)

    @property
    def table_columns(self) -> Mapping[str, Any]:
        """The table's columns without the key, name to Avro type."""
        return COLUMNS if self.columns is None else self.columns

    @cached_property
    def has_own_table(self) -> bool:
        """Whether the log needs a separate table, because it would affect other logs or they would affect it."""
        return bool(
            self.settings
            or self.accept_loss
            or self.stops
            or self.columns is not None
            or self.keys is not None
            or any(
                event.op == "t" or event.generation or event.lost or event.shape or event.columns
                for event in self.events
            )
        )

    def expected(self, deletes: Deletes) -> Sequence[ExpectedRow]:
        """The expected rows; none if the run must stop."""
        if self.expect is not None:
            return self.expect.soft if deletes == "soft" else self.expect.hard
        return [row for row in self.rows or () if deletes == "soft" or not row.deleted]

    def offsets(self) -> list[int]:
        """Each event's offset."""
        following: dict[tuple[int, int], int] = {}
        found = []
        for event in self.events:
            place = event.generation, event.partition
            found.append(following.get(place, 0) if event.offset is None else event.offset)
            following[place] = found[-1] + 1
        return found


def load(folder: Path = LOGS) -> list[Log]:
    """All logs of a folder, in the order of its files.

    Raises:
        LogError: a file has another format, or two logs have the same name.
    """
    found: dict[str, Log] = {}
    for file in sorted(folder.glob("*.yml")):
        for log in _logs_in(file):
            if log.log in found:
                raise LogError(f"{file.name}: {log.log}: there are two logs of this name")
            found[log.log] = log
    return list(found.values())


def _logs_in(file: Path) -> Iterable[Log]:
    try:
        entries = yaml.load(file.read_text(encoding="utf-8"), _Loader)
    except yaml.YAMLError as exc:
        raise LogError(f"{file.name}: this is not YAML: {exc}") from exc
    for entry in entries if isinstance(entries, list) else [entries]:
        name = entry.get("log") if isinstance(entry, dict) else entry
        try:
            yield Log.model_validate(entry)
        except ValidationError as exc:
            said = "; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in exc.errors())
            raise LogError(f"{file.name}: {name}: {said}") from exc


class _Loader(yaml.SafeLoader):
    """YAML without tags that build objects, and without duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value]
        for name in {name for name in names if names.count(name) > 1}:
            raise yaml.constructor.ConstructorError(None, None, f"the key `{name}` is there twice", node.start_mark)
        return super().construct_mapping(node, deep)
