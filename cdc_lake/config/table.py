"""The settings of a table, in groups; all are optional."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, BeforeValidator, ConfigDict, Field, model_validator

from cdc_lake.config.base import ConfigPath, Model, Name
from cdc_lake.config.storage import Format, StorageConfig
from cdc_lake.errors import ConfigError

WireFormat = Literal["auto", "id4", "id8", "glue", "glue-zlib", "single-object", "bare", "json", "csv", "string"]
Limit = Annotated[str, Field(pattern=r"^(\d+|\d{1,2}(\.\d+)?%|100%)$", coerce_numbers_to_str=True)]
"""A number of records, or a percentage."""


def _start(value: Any) -> Any:
    if isinstance(value, int | float) or re.fullmatch(r"[-+]?[\d.]+", str(value)):
        raise ValueError("a number does not name a partition; write `0: 1200`, or a time such as 2026-11-23T12:00:00Z")
    return value


StartPosition = Annotated[
    Literal["earliest", "latest"] | dict[int, Annotated[int, Field(ge=0)]] | AwareDatetime, BeforeValidator(_start)
]
"""A position in each partition of a topic: its first record, its end, an offset (partitions without one start at their
first record), or the first record written at or after a time."""


class ReadConfig(Model):
    """How a run reads the topic, batch by batch."""

    start: StartPosition = Field(
        default="earliest",
        description="Sets where bronze starts in a new topic: `earliest`, `latest`, a time with its zone, or "
        "`{partition: offset}`. It has no effect after the first batch; see `cdc-lake seek`.",
    )
    max_records_per_batch: int = Field(
        default=1_000_000,
        gt=0,
        description="Limits the records per batch. A file of `files.root` and, in silver, a bronze batch is never "
        "split, even if it has more.",
    )
    max_batch_bytes: int | None = Field(
        default=None,
        gt=0,
        description="Limits the bytes of keys, values and headers per batch. A larger record and, in silver, a larger "
        "bronze batch is processed alone. Without it: an eighth of the heap in bronze and a twelfth in silver, of the "
        "driver or of an executor (the smaller one), divided by the tables in parallel.",
    )
    min_batch_bytes: int = Field(
        default=0,
        ge=0,
        description="With `--continuous`, waits for about this many bytes of keys and values, to avoid small files.",
    )
    max_latency_seconds: float = Field(
        default=300.0, gt=0, description="With `min_batch_bytes`, limits how many seconds a record waits."
    )
    max_record_bytes: int = Field(
        default=16 << 20,
        gt=0,
        description="Quarantines records whose key, value or headers are larger, in bytes. Bronze does not store them.",
    )
    on_log_reset: Literal["stop", "warn"] = Field(
        default="stop",
        description="Sets what to do when the source was restored and its source positions went back: `stop` (exit 20) "
        "or `warn`.",
    )


class KeyConfig(Model):
    """How to decode the records' keys."""

    wire_format: WireFormat = Field(
        default="auto",
        description="Sets how keys name their schema. `auto` detects it from headers and first bytes. Others: `id4`, "
        "`id8`, `glue`, `glue-zlib`, `single-object`, `bare`, `json`, `csv`, `string`.",
    )
    schemas: tuple[ConfigPath, ...] = Field(
        default=(), description="Lists files of the keys' Avro schemas, for `bare` and `single-object`."
    )
    columns: tuple[str, ...] = Field(
        default=(),
        description="Names the key's columns if keys are `string` or `csv`; set their types in `value.columns`.",
    )


class ValueConfig(Model):
    """How to decode the records' values."""

    wire_format: WireFormat = Field(
        default="auto", description="Sets how values name their schema: one of the formats of `key.wire_format`."
    )
    schemas: tuple[ConfigPath, ...] = Field(
        default=(), description="Lists files of the values' Avro schemas, for `bare` and `single-object`."
    )
    columns: dict[str, str] = Field(
        default_factory=dict,
        description="Sets the types by column, for CSV, text, and JSON without a schema: Spark types, and units such "
        "as `timestamp_ms` for numbers.",
    )


class EnvelopeConfig(Model):
    """The fields and names that the connector and its transforms add to a row."""

    add_fields_prefix: str = Field(default="__", description="Names the unwrap transform's `add.fields.prefix`.")
    add_fields_renamed: dict[str, str] = Field(
        default_factory=dict,
        description="Maps metadata fields to the names that the unwrap transform gives them; all of them if the prefix "
        "is empty.",
    )
    unavailable_value_placeholder: str = Field(
        default="__debezium_unavailable_value", description="Names the connector's `unavailable.value.placeholder`."
    )
    null_means_unchanged: tuple[str, ...] = Field(
        default=(),
        description='Lists columns whose null in an update means "unchanged", for types without a placeholder. If '
        "`before` has a value, the column was set to null.",
    )
    record_names: tuple[str, ...] = Field(
        default=(), description="Lists globs of the Avro record names, if they differ from the topic."
    )


class MergeConfig(Model):
    """How events become rows of silver."""

    mode: Literal["merge", "append"] = Field(
        default="merge",
        description="`merge` keeps one row per key. `append` writes a row per event, without a key.",
    )
    keys: tuple[str, ...] = Field(
        default=(),
        description="Lists the columns of the row that form the primary key. Kafka's key is then ignored.",
    )
    sequence_by: str | None = Field(
        default=None,
        description="Names the column that decides which of two events is newer, if there is no source position: a "
        "whole number, date or timestamp.",
    )
    order: Literal["source", "log"] = Field(
        default="source",
        description="Sets what decides which of two events of a key is newer. `source`: the position in the source's "
        "log, or the source's time if there is no position. `log`: the order in Kafka, for sources without a position "
        "whose clock is set back.",
    )
    apply_as_deletes: str | None = Field(
        default=None, description="Deletes the row of an event that meets this SQL condition."
    )
    derive: dict[str, str] = Field(
        default_factory=dict,
        description="With `mode: append`, adds columns: SQL expressions by name, on the event's columns and "
        "`meta.kafka`.",
    )


class DeletesConfig(Model):
    """How deletes and truncates of the source change silver."""

    mode: Literal["soft", "hard"] = Field(
        default="soft", description="`soft` keeps a deleted row with `__deleted = true`. `hard` removes it."
    )
    keep_values: bool = Field(
        default=True,
        description="Keeps the last values of a soft-deleted row. If false, columns outside the key become null.",
    )
    retention_days: float = Field(
        default=30.0,
        gt=0,
        description="Remembers hard deletes, truncates and the values of rows whose key changed for this many days.",
    )
    truncates: Literal["as_deletes", "hard", "soft", "refuse"] = Field(
        default="as_deletes",
        description="Sets how to apply TRUNCATE: like deletes (`deletes.mode`), `hard`, `soft`, or `refuse` (exit 2).",
    )
    across_partitions: bool = Field(
        default=False,
        description="Also applies TRUNCATE in topics with several partitions, where only Kafka's timestamps order it.",
    )
    missing_after_snapshot: bool = Field(
        default=False, description="Deletes rows that a completed snapshot of the whole table lacks."
    )


Evolution = Literal["evolve", "add_only", "freeze"]
"""How silver's columns follow the source's."""


class SchemaConfig(Model):
    """Which columns silver has, and how they change."""

    evolution: Evolution = Field(
        default="evolve",
        description="Sets how silver follows changes of the source's columns. `evolve` adds and widens columns, and "
        "puts values of an incompatible type into a variant column. `add_only` adds columns and stops at other "
        "changes. `freeze` stops at any change.",
    )
    exclude: tuple[str, ...] = Field(default=(), description="Excludes these source columns from silver.")
    rename: dict[str, str] = Field(
        default_factory=dict,
        description="Renames columns: silver's name by the source's. Columns may share a name at different times.",
    )
    cast: dict[str, str] = Field(
        default_factory=dict,
        description="Casts columns to fixed Spark types. A value that does not fit stops the run.",
    )


class Expectation(Model):
    """A condition that rows must meet."""

    name: Name = Field(description="Names the expectation in reports.")
    holds: str = Field(description="States the SQL condition. A row meets it unless the result is false.")
    on_fail: Literal["warn", "reject", "stop"] = Field(
        default="warn",
        description="Sets what to do with a row that fails: `warn` counts it, `reject` excludes it from silver, `stop` "
        "aborts the commit (exit 30).",
    )


class QualityConfig(Model):
    """What to do with records that cannot be decoded, and with rows that fail a condition."""

    expectations: tuple[Expectation, ...] = Field(
        default=(),
        description="Lists conditions that rows must meet. Each event is checked before the merge; a placeholder "
        "meets any condition on its column.",
    )
    on_error: Literal["quarantine", "stop", "log"] = Field(
        default="quarantine",
        description="Sets what to do with a record that cannot be decoded. `quarantine` quarantines it. `stop` does "
        "not commit the batch (exit 30). `log` logs the reason, marks the record `dropped` and keeps its bytes.",
    )
    dead_letter_topic: Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]{1,249}$")] | None = Field(
        default=None,
        description="Sends quarantined records to this Kafka topic too, with Connect's `__connect.errors` headers.",
    )
    max_quarantined: Limit = Field(
        default="100%",
        description="Ends the run with exit 30 after the commit if it quarantines more than this number or percentage "
        "of its records.",
    )
    on_unusable_records: Literal["stop", "warn"] = Field(
        default="stop",
        description="Sets how a run ends if none of a table's records are usable: `stop` (exit 30 after the commit; "
        "with `--continuous` only a warning) or `warn`.",
    )


class TableConfig(Model):
    """How one table is read, merged and stored."""

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)  # `schema` is a method of pydantic's

    storage: tuple[StorageConfig, ...] = Field(
        default=(StorageConfig(),),
        min_length=1,
        description="Lists the tables that store silver: one, or several with the same rows. Gold reads the first.",
    )
    read: ReadConfig = ReadConfig()
    key: KeyConfig = KeyConfig()
    value: ValueConfig = ValueConfig()
    envelope: EnvelopeConfig = EnvelopeConfig()
    merge: MergeConfig = MergeConfig()
    deletes: DeletesConfig = DeletesConfig()
    schema_: SchemaConfig = Field(default=SchemaConfig(), alias="schema")
    quality: QualityConfig = QualityConfig()

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        kinds = [table.kind for table in self.storage]
        if len(set(kinds)) < len(kinds):
            raise ValueError("two entries of `storage` have the same format and type")
        if self.merge.keys and (self.key.columns or self.key.schemas):
            raise ValueError("`merge.keys` takes the key from the row; remove `key.columns` and `key.schemas`")
        if len({one.name for one in self.quality.expectations}) < len(self.quality.expectations):
            raise ValueError("two of `quality.expectations` have the same name")
        return self

    @property
    def log_may_reset(self) -> bool:
        """Whether the source positions may go back."""
        return self.read.on_log_reset == "warn"

    @property
    def is_in_log_order(self) -> bool:
        """Whether the order in Kafka alone decides which of two events of a key is newer."""
        return self.merge.order == "log"

    @property
    def key_of_rows(self) -> tuple[str, ...] | None:
        """The columns of the row that form its key; empty if Kafka's key is used, None if rows have no key."""
        return None if self.merge.mode == "append" else self.merge.keys

    @property
    def formats(self) -> frozenset[Format]:
        """The formats of the topic's silver tables."""
        return frozenset(table.format for table in self.storage)

    def wire(self, side: Literal["key", "value"]) -> KeyConfig | ValueConfig:
        """The settings for decoding keys, or values."""
        return self.key if side == "key" else self.value

    def check_has_keys(self, topic: str, cure: str) -> None:
        """Check that rows have keys, for commands that look rows up by key.

        Raises:
            ConfigError: they have none.
        """
        if self.key_of_rows is None:
            raise ConfigError(topic, "its rows have no key: `merge.mode` is append", cure)

    def check(self, topic: str) -> None:
        """Check settings that depend on each other, after all settings of a topic are merged.

        Raises:
            ConfigError: a setting lacks another one, or has no effect with it.
        """
        for side, wire in (("key", self.key), ("value", self.value)):
            if wire.wire_format in ("bare", "single-object") and not wire.schemas:
                raise ConfigError(
                    f"{topic}: {side}.wire_format: {wire.wire_format}",
                    "such records do not contain their schema, and the settings have none",
                    f"list the files of their Avro schemas in `{side}.schemas`",
                )
        merge, is_append = self.merge, self.merge.mode == "append"
        without_effect = (
            {
                "merge.keys": merge.keys,
                "merge.sequence_by": merge.sequence_by,
                "merge.apply_as_deletes": merge.apply_as_deletes,
                "deletes.missing_after_snapshot": self.deletes.missing_after_snapshot,
            }
            if is_append
            else {"merge.derive": merge.derive}
        )
        if given := [key for key, value in without_effect.items() if value]:
            raise ConfigError(
                f"{topic}: {given[0]}",
                f"it has no effect with `merge.mode: {merge.mode}`",
                "remove it or change `merge.mode`",
            )
        if merge.sequence_by and self.is_in_log_order:
            raise ConfigError(
                f"{topic}: merge.sequence_by", "it has no effect with `merge.order: log`", "remove one of the two"
            )
        if is_append and any(table.format != "delta" for table in self.storage):
            raise ConfigError(
                f"{topic}: merge.mode: append",
                "append mode supports Delta only",
                "set `storage` of this table to Delta",
            )
        if self.value.wire_format in ("csv", "string") and not self.value.columns:
            raise ConfigError(
                f"{topic}: value.wire_format: {self.value.wire_format}",
                "such records do not contain column names, and the settings have none",
                "list them with their types in `value.columns`, in the order of the text",
            )
        for name in (*merge.keys, *([merge.sequence_by] if merge.sequence_by else ())):
            if name in self.schema_.exclude:
                raise ConfigError(
                    f"{topic}: schema.exclude: {name}",
                    "`merge.keys` or `merge.sequence_by` needs the column",
                    "remove it from one of them",
                )
