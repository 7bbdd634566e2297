"""Silver's columns, and how they follow the source's.

Each source column has a *target column* in silver: the column of the same name, or the one that `rename` names. Values
whose type is incompatible with the target go to a *variant column*, `<target>__<type>`. A column never moves once it
exists: a table that is rebuilt from the same events has the same columns. docs/reference/evolution.md lists each
change.
"""

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from cdc_lake.columns import quoted
from cdc_lake.config import Evolution
from cdc_lake.decode.column_mapping import RENAME_OR_EXCLUDE, ColumnMapping, column_problem, variant_name
from cdc_lake.decode.schemas import duplicate_names
from cdc_lake.decode.types import plain_type, same_key, wider
from cdc_lake.errors import ConfigError, SchemaChangeError, UnsupportedError


@dataclass(frozen=True)
class Layout:
    """The columns of a silver table.

    Attributes:
        keys: the primary key's, name to Spark type, in the key schema's order.
        columns: all, keys first.
        variants: variant column -> its target column.
        column_mapping: from source columns to target columns.
    """

    keys: Mapping[str, str]
    columns: Mapping[str, str]
    variants: Mapping[str, str] = field(default_factory=dict)
    column_mapping: ColumnMapping = field(default_factory=ColumnMapping)

    def of_target(self, target: str) -> list[str]:
        """A target column and its variants, if they exist."""
        own = [target] if target in self.columns and target not in self.variants else []
        return own + [name for name, of in self.variants.items() if of == target and name in self.columns]

    def of_source(self, source: str) -> list[str]:
        """The columns that store a source column's values."""
        target = self.column_mapping.target(source)
        return [] if target is None else self.of_target(target)

    def column_for(self, source: str, spark_type: str) -> str | None:
        """The column that takes a source column's values of a type; none if it is excluded."""
        target = self.column_mapping.target(source)
        if target is None:
            return None
        spark_type = self.column_mapping.type_of(target, spark_type)
        return next((name for name in self.of_target(target) if _can_store(self.columns[name], spark_type)), None)


@dataclass(frozen=True)
class SchemaStep:
    """One change of a silver table's columns.

    Attributes:
        kind: `add`; `widen`, which rewrites the table; `variant`, a new column for values of an incompatible type;
            `retired`, no longer sent; `resumed`, sent again.
        column: silver's.
        was, becomes: Spark types; none if not applicable.
        target: the target column, for `variant`.
    """

    kind: Literal["add", "widen", "variant", "retired", "resumed"]
    column: str
    was: str | None = None
    becomes: str | None = None
    target: str | None = None

    @property
    def words(self) -> str:
        """A description of the change."""
        match self.kind:
            case "add":
                return f"`{self.column}` {self.becomes} is new"
            case "widen":
                return f"`{self.column}` {self.was} becomes {self.becomes}"
            case "variant":
                return f"`{self.target}` changed from {self.was} to {self.becomes}: such values go to `{self.column}`"
            case "retired":
                return f"`{self.column}` is no longer sent: the column stays, with null in new rows"
        return f"`{self.column}` is sent again"

    def ddl(self, table: str) -> str | None:
        """The step as SQL; none if no column changes."""
        if self.kind == "widen":
            return f"ALTER TABLE {table} ALTER COLUMN {quoted(self.column)} TYPE {self.becomes}"
        if self.kind in ("add", "variant"):
            return f"ALTER TABLE {table} ADD COLUMN {quoted(self.column)} {self.becomes}"
        return None


_ALLOWED: Mapping[Evolution, frozenset[str]] = {
    "evolve": frozenset({"add", "widen", "variant", "retired", "resumed"}),
    "add_only": frozenset({"add", "retired", "resumed"}),
    "freeze": frozenset(),
}


def check_steps(table: str, steps: Sequence[SchemaStep], policy: Evolution) -> None:
    """Check that a table's policy allows all of these steps.

    `evolve` allows every step; `add_only` allows new columns, and columns that are no longer sent; `freeze` allows
    none.

    Raises:
        SchemaChangeError: it does not; the message lists the steps that it does not allow.
    """
    refused = [step.words for step in steps if step.kind not in _ALLOWED[policy]]
    if refused:
        raise SchemaChangeError(
            table,
            f"`schema.evolution: {policy}` does not allow these changes: {'; '.join(refused)}",
            "set `schema.evolution: evolve` for this table and run again (`cdc-lake plan` previews the changes), or "
            "list the columns in `schema.exclude`, `schema.rename` or `schema.cast`",
        )


@dataclass(frozen=True)
class SentColumns:
    """The columns in the schemas of a table's events.

    Attributes:
        keys: the columns of each key schema, name to Spark type, the last event's last; empty if the key is unchanged.
        values: the columns of each value schema, in order of first use.
        newest: the columns of the schema used last, if it lists the source's columns.
    """

    keys: Sequence[Mapping[str, str]]
    values: Sequence[Mapping[str, str]]
    newest: Mapping[str, str] | None = None


@dataclass(frozen=True)
class LayoutChange:
    """A layout, and the steps from the previous one.

    Attributes:
        steps: none if the table is new.
        retired: the columns that the source no longer sends.
    """

    layout: Layout
    steps: Sequence[SchemaStep]
    retired: Collection[str] = ()

    @property
    def is_wider(self) -> bool:
        """Whether stored columns must be widened, which rewrites the table."""
        return any(step.kind == "widen" for step in self.steps)


def evolve_layout(
    table: str,
    sent: SentColumns,
    *,
    stored: Layout | None = None,
    retired: Collection[str] = (),
    known: Layout | None = None,
    column_mapping: ColumnMapping | None = None,
    is_keyless: bool = False,
) -> LayoutChange:
    """The columns that a table needs for its stored rows and new events.

    Args:
        stored: the table's columns; none if the table is new.
        retired: the columns that the source already no longer sent.
        known: the columns of the table that is rebuilt, whose names are kept.
        column_mapping: from source columns to target columns; by default to columns of the same name.
        is_keyless: whether rows have no key.

    Raises:
        UnsupportedError: the primary key's columns changed, or a table cannot have a column of that name.
        ConfigError: the settings exclude the primary key, or map two columns to one.
    """
    column_mapping = column_mapping or ColumnMapping()
    keys = {} if is_keyless else _keys(table, sent.keys, stored, column_mapping)
    own = {name: spark_type for name, spark_type in stored.columns.items() if name not in stored.keys} if stored else {}
    layout = Layout(keys, {**keys, **own}, stored.variants if stored else {}, column_mapping)
    for columns in sent.values:
        for target, spark_type in column_mapping.target_types(table, columns).items():
            if target not in keys:
                layout = _with_value(layout, target, spark_type, known or layout)
    check_names(table, layout.columns)
    now_retired = set(retired)
    if sent.newest is not None:
        here = {*keys, *column_mapping.target_types(table, sent.newest)}
        now_retired = {name for name in layout.columns if layout.variants.get(name, name) not in here}
    return LayoutChange(layout, _steps(stored, layout, set(retired), now_retired) if stored else (), now_retired)


def _with_value(layout: Layout, target: str, spark_type: str, known: Layout) -> Layout:
    """The layout with a column that takes a target's values of a type, named as in `known`."""
    for name in layout.of_target(target):
        if (becomes := wider(layout.columns[name], spark_type)) is not None:
            return replace(layout, columns={**layout.columns, name: becomes})
    taking = _in_known(layout, known, target, spark_type)
    name, becomes = taking or (_free_name(layout, known, target, spark_type), spark_type)
    variants = {} if name == target else {name: target}
    return replace(layout, columns={**layout.columns, name: becomes}, variants={**layout.variants, **variants})


def _in_known(layout: Layout, known: Layout, target: str, spark_type: str) -> tuple[str, str] | None:
    """The name and type of the column in `known` that takes such values, if it is free here."""
    free = (name for name in known.of_target(target) if name not in layout.columns)
    of_target = ((name, wider(known.columns[name], spark_type)) for name in free)
    return next(((name, becomes) for name, becomes in of_target if becomes is not None), None)


def _free_name(layout: Layout, known: Layout, target: str, spark_type: str) -> str:
    reserved = {*layout.columns, *known.columns}
    is_free = target.lower() not in {other.lower() for other in reserved}
    return target if is_free else variant_name(target, spark_type, reserved)


def _steps(stored: Layout, layout: Layout, retired: set[str], now_retired: set[str]) -> list[SchemaStep]:
    steps = []
    for name, spark_type in layout.columns.items():
        was, target = stored.columns.get(name), layout.variants.get(name)
        if was is None:
            base_type = layout.columns.get(target) if target else None
            steps.append(SchemaStep("variant" if base_type else "add", name, base_type, spark_type, target))
        elif plain_type(was) != plain_type(spark_type):
            steps.append(SchemaStep("widen", name, was, spark_type))
    steps += [SchemaStep("retired", name) for name in stored.columns if name in now_retired - retired]
    return steps + [SchemaStep("resumed", name) for name in stored.columns if name in retired - now_retired]


def check_names(table: str, columns: Collection[str]) -> None:
    """Check that one table can have columns of these names.

    Raises:
        UnsupportedError: it cannot.
    """
    for name in columns:
        if problem := column_problem(name):
            raise UnsupportedError(f"{table}.{name}", problem, RENAME_OR_EXCLUDE)
    if both := duplicate_names(columns):
        reason = f"it differs from `{both[0]}` only in case"
        raise UnsupportedError(f"{table}.{both[1]}", reason, RENAME_OR_EXCLUDE)


def _can_store(column: str, spark_type: str) -> bool:
    """Whether a column's type can represent every value of another type."""
    return wider(column, spark_type) == column


def _keys(
    table: str, schemas: Sequence[Mapping[str, str]], stored: Layout | None, column_mapping: ColumnMapping
) -> dict[str, str]:
    """The primary key's target columns, wide enough for all schemas."""
    keys = dict(stored.keys) if stored else None
    for columns in schemas:
        if excluded := [name for name in columns if column_mapping.target(name) is None]:
            raise ConfigError(f"{table}.{excluded[0]}", "it is a column of the primary key", "see `schema.exclude`")
    every_sent = [column_mapping.target_types(table, columns) for columns in schemas]
    for sent in every_sent:
        known, keys = keys or sent, same_key(keys or sent, sent)
        if keys is None:
            newest = every_sent[-1]
            was = known if same_key(known, newest) is None else sent
            names = shlex.quote(",".join(sorted(newest)))
            raise UnsupportedError(
                table,
                f"its primary key was {_column_list(was)} and now is {_column_list(newest)}",
                "have the connector take a new snapshot of the table, run the bronze job, then "
                f"`cdc-lake rebuild --table {table} --key-from {names}`, with --dry-run first",
            )
    if keys is None:
        raise UnsupportedError(
            table, "its records have no key, so rows cannot be identified", "set message.key.columns on the connector"
        )
    if maps := [name for name, spark_type in keys.items() if "map<" in spark_type]:
        raise UnsupportedError(
            f"{table}.{maps[0]}",
            "a column of the primary key is a map, which Spark cannot compare",
            "set hstore.handling.mode=json on the connector",
        )
    return keys


def _column_list(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {spark_type}" for name, spark_type in sorted(columns.items()))
