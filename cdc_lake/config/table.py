"""The settings of a table."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, BeforeValidator, Field, model_validator

from cdc_lake.config.base import Model, Name
from cdc_lake.config.secrets import ConfigPath
from cdc_lake.config.storage import SilverTable
from cdc_lake.errors import ConfigError

Framing = Literal["auto", "id4", "id8", "glue", "glue-zlib", "single-object", "bare", "json", "csv", "string"]


Limit = Annotated[str, Field(pattern=r"^(\d+|\d{1,2}(\.\d+)?%|100%)$", coerce_numbers_to_str=True)]
"""A number of records, or a share of them."""


class Expectation(Model):
    """What rows are expected to be."""

    name: Name
    holds: str = Field(description="An SQL condition; a row meets it unless it is false.")
    on_fail: Literal["warn", "reject", "stop"] = Field(
        default="warn",
        description="What a row does that does not meet it: it is counted, left out, or nothing is written (exit 30).",
    )


def _start(value: Any) -> Any:
    if isinstance(value, int | float) or re.fullmatch(r"[-+]?[\d.]+", str(value)):
        raise ValueError("a number alone says no partition: write `0: 1200`, or a time as in 2026-11-23T12:00:00Z")
    return value


StartPosition = Annotated[
    Literal["earliest", "latest"] | dict[int, Annotated[int, Field(ge=0)]] | AwareDatetime, BeforeValidator(_start)
]
"""A place in each partition of a topic: its first record there is, behind its last, the offset by partition (where none
is named, the first), or the first record written then or later."""


Evolution = Literal["evolve", "add_only", "freeze"]
"""What may become of silver's columns when the source's change."""


class TableConfig(Model):
    """How one table is treated. Nothing of it must be set."""

    silver: tuple[SilverTable, ...] = Field(
        default=(SilverTable(),),
        min_length=1,
        description="What silver is held in: one table, or several side by side. Readers such as gold take the first.",
    )
    deletes: Literal["soft", "hard"] = Field(
        default="soft", description="soft: the row stays with `__deleted = true`; hard: it goes."
    )
    soft_delete_values: Literal["last", "null"] = Field(
        default="last", description="What a soft-deleted row holds outside its key: its last real values, or nulls."
    )
    truncates: Literal["as_deletes", "hard", "soft", "refuse"] = Field(
        default="as_deletes",
        description="What a TRUNCATE does to the rows before it: what `deletes` says, a hard or a soft delete of each; "
        "or the run stops.",
    )
    truncates_across_partitions: bool = Field(
        default=False,
        description="Apply truncates of topics with several partitions too, where Kafka's time alone says what came "
        "before.",
    )
    remove_missing_after_snapshot: bool = Field(
        default=False,
        description="Delete the rows that a completed new snapshot of the whole table no longer has.",
    )
    delete_memory_days: float = Field(
        default=30.0, gt=0, description="How long a hard delete, a truncate or a moved row's values are remembered."
    )
    on_log_reset: Literal["stop", "warn"] = Field(
        default="stop",
        description="When the source's log positions went back on many keys while its clock went on (a restore).",
    )
    null_means_keep: tuple[str, ...] = Field(
        default=(),
        description="Columns whose null in an update means `not sent`: types the connector has no placeholder for.",
    )
    start: StartPosition = Field(
        default="earliest",
        description="Where bronze begins to read a topic: earliest, latest, a time, or `partition: offset`. From then "
        "on its own progress counts; see `cdc-lake seek`.",
    )
    max_rows: int = Field(
        default=1_000_000, gt=0, description="Records a batch takes at most (whole bronze batches in silver)."
    )
    max_batch_bytes: int | None = Field(
        default=None,
        gt=0,
        description="Bytes of keys and values that a batch of bronze has at most, unless one record has more. Default: "
        "an eighth of the heap of the driver or of an executor, the smaller one, divided by the tables side by side.",
    )
    min_batch_bytes: int = Field(
        default=0,
        ge=0,
        description="With --continuous: records wait until about so many bytes of keys and values are there, so that "
        "files are not small.",
    )
    max_latency_seconds: float = Field(
        default=300.0, gt=0, description="But no record waits longer than this for others."
    )
    unavailable_value: str = Field(
        default="__debezium_unavailable_value", description="The connector's `unavailable.value.placeholder`."
    )
    key_framing: Framing = Field(
        default="auto", description="How keys name their schema; auto: told by headers and first bytes."
    )
    value_framing: Framing = Field(default="auto", description="The same of values.")
    key_schemas: tuple[ConfigPath, ...] = Field(
        default=(), description="Files of Avro schemas of keys that name none (bare), or name a fingerprint."
    )
    value_schemas: tuple[ConfigPath, ...] = Field(default=(), description="The same of values.")
    key_columns: tuple[str, ...] = Field(
        default=(), description="The key's column where keys are text (key_framing: string, csv), its types in columns."
    )
    columns: dict[str, str] = Field(
        default_factory=dict,
        description="Types, in Spark's words, by column: of CSV, text, and JSON without a schema.",
    )
    mode: Literal["merge", "append"] = Field(
        default="merge",
        description="append: silver has a row for each event, and nothing is merged; no key is needed.",
    )
    derive: dict[str, str] = Field(
        default_factory=dict,
        description="Of append: further columns of silver, SQL expressions by name, on the event's own columns and "
        "`meta.kafka`.",
    )
    keys: tuple[str, ...] = Field(
        default=(),
        description="The row's columns that make its key, where Kafka's keys do not: they are not looked at.",
    )
    sequence_by: str | None = Field(
        default=None,
        description="The row's column that says which of two events is newer, a whole number, date or timestamp, where "
        "the source's log does not.",
    )
    apply_as_deletes: str | None = Field(
        default=None, description="An SQL condition; an event whose row meets it deletes the row."
    )
    evolution: Evolution = Field(
        default="evolve",
        description="What a change of the source's columns does to silver's: evolve adds, widens, and puts values of "
        "another type beside; add_only adds, and else the run stops; freeze stops at any change.",
    )
    except_columns: tuple[str, ...] = Field(default=(), description="The source's columns that silver does not have.")
    rename: dict[str, str] = Field(
        default_factory=dict, description="Silver's names of columns, by the source's; several may become one in turn."
    )
    cast: dict[str, str] = Field(
        default_factory=dict,
        description="Types that silver's columns have whatever comes, in Spark's words; a value that does not go into "
        "one stops the run.",
    )
    record_names: tuple[str, ...] = Field(
        default=(),
        description="Globs of what the topic's records are named after, where that is not the topic itself.",
    )
    metadata_prefix: str = Field(
        default="__", description="What the unwrap transform puts before the fields it adds (add.fields.prefix)."
    )
    metadata_fields: dict[str, str] = Field(
        default_factory=dict,
        description="Fields that the unwrap transform was told to rename, ours to the name sent; all, where the "
        "prefix is empty.",
    )
    max_record_bytes: int = Field(
        default=16 << 20, gt=0, description="A larger key or value is quarantined, and its bytes are not kept."
    )
    decoded: bool = Field(
        default=False, description="Bronze holds typed `before` and `after` beside the bytes, for people who read it."
    )
    expectations: tuple[Expectation, ...] = Field(
        default=(),
        description="What rows are to be. Each event is judged for itself before it is folded into silver; one that "
        "tells nothing of a column (a placeholder) meets what is said of it.",
    )
    on_error: Literal["quarantine", "stop", "log"] = Field(
        default="quarantine",
        description="What a record that cannot be read does: it is set aside; the run stops before it commits; or it "
        "is logged and waits for nobody, its bytes in bronze all the same.",
    )
    dead_letter_topic: Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]{1,249}$")] | None = Field(
        default=None,
        description="A Kafka topic that records in quarantine are sent to, too, with Connect's `__connect.errors` "
        "headers.",
    )
    max_quarantined: Limit = Field(
        default="100%",
        description="More records of a run in quarantine than this (a number, or a share: 0.1%) end it with exit "
        "code 30, after the commit.",
    )

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        kinds = [table.kind for table in self.silver]
        if len(set(kinds)) < len(kinds):
            raise ValueError("`silver` names the same format and type twice")
        if self.keys and (self.key_columns or self.key_schemas):
            raise ValueError("`keys` takes the key from the row, so that `key_columns` and `key_schemas` say nothing")
        if len({one.name for one in self.expectations}) < len(self.expectations):
            raise ValueError("two of `expectations` have the same name")
        return self

    @property
    def key_of_rows(self) -> tuple[str, ...] | None:
        """The columns of the row that make its key; empty where Kafka's key does, none where rows have no key."""
        return None if self.mode == "append" else self.keys

    def check(self, topic: str) -> None:
        """See that what one setting needs of another is there, all of a topic's together.

        Raises:
            ConfigError: it is not.
        """
        for side in ("key", "value"):
            framing = getattr(self, f"{side}_framing")
            if framing in ("bare", "single-object") and not getattr(self, f"{side}_schemas"):
                raise ConfigError(
                    f"{topic}: {side}_framing: {framing}",
                    "such records do not carry their schema, and the settings name none",
                    f"name the files of their Avro schemas in `{side}_schemas`",
                )
        is_append = self.mode == "append"
        needless = (
            ("keys", "sequence_by", "apply_as_deletes", "remove_missing_after_snapshot") if is_append else ("derive",)
        )
        if given := [name for name in needless if getattr(self, name)]:
            raise ConfigError(
                f"{topic}: {given[0]}", f"it says nothing with `mode: {self.mode}`", "take one of them out"
            )
        if is_append and any(table.format != "delta" for table in self.silver):
            raise ConfigError(f"{topic}: mode: append", "such tables are held in delta", "mend `silver` of this table")
        if self.value_framing in ("csv", "string") and not self.columns:
            raise ConfigError(
                f"{topic}: value_framing: {self.value_framing}",
                "such records do not say their columns, and the settings name none",
                "name them with their types in `columns`, in the order of the text",
            )
        for name in (*self.keys, *([self.sequence_by] if self.sequence_by else ())):
            if name in self.except_columns:
                raise ConfigError(
                    f"{topic}: except_columns: {name}",
                    "`keys` or `sequence_by` needs the column",
                    "take it out of one of them",
                )
