"""Changes of a source table's columns, and docs/reference/evolution.md with the outcome of each.

The outcomes on the page are computed by the code; tests/engines/test_evolution.py compares real tables with them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

from cdc_lake.config import Evolution
from cdc_lake.decode.records import WriterSchema
from cdc_lake.errors import ConfigError
from cdc_lake.silver.events import sent_columns
from cdc_lake.silver.evolution import SchemaStep, check_steps, evolve_layout
from support import wire

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "evolution.md"
TABLE = "pagila.public.thing"
POLICIES: tuple[Evolution, ...] = get_args(Evolution)
KEY: wire.Fields = {"id": wire.INT32}
_TEXT = wire.optional(wire.STRING)
_INT = wire.optional(wire.INT32)


@dataclass(frozen=True)
class Change:
    """A change of columns that no other change uses.

    Attributes:
        name: its description on the page.
        before, after: the columns.
        old, new: values of a row sent before the change, and of one sent after it.
        shown: silver's values of both rows.
        more: other changes of the schema: the version of Debezium, columns of the primary key.
    """

    name: str
    before: wire.Fields
    after: wire.Fields
    old: Mapping[str, Any]
    new: Mapping[str, Any]
    shown: tuple[Mapping[str, Any], Mapping[str, Any]]
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_combinable(self) -> bool:
        """Whether it can be combined with other changes."""
        return not self.more


def _column(name: str, column: str, before: wire.Schema, after: wire.Schema, old: Any, new: Any, **more: Any) -> Change:
    """A change of one column that keeps its column in silver."""
    shown = more.pop("shown", (old, new))
    was, is_now = ({column: value} for value in shown)
    return Change(name, {column: before}, {column: after}, {column: old}, {column: new}, (was, is_now), more)


def _variant(
    name: str, column: str, before: wire.Schema, after: wire.Schema, old: Any, new: Any, variant: str
) -> Change:
    """A change of one column's type whose new values go to a variant column."""
    shown = {column: old, variant: None}, {column: None, variant: new}
    return Change(name, {column: before}, {column: after}, {column: old}, {column: new}, shown)


def _number(digits: int, scale: int) -> wire.Schema:
    return wire.optional(wire.decimal(digits, scale))


def _unscaled(digits: int) -> bytes:
    return wire.unscaled(digits)


CHANGES: Sequence[Change] = (
    Change("a column is added", {}, {"added": _INT}, {}, {"added": 7}, ({"added": None}, {"added": 7})),
    Change(
        "a column is added that has a default",
        {},
        {"filled": wire.defaulted(_TEXT, "x")},
        {},
        {"filled": "y"},
        ({"filled": None}, {"filled": "y"}),
    ),
    Change("a column is dropped", {"dropped": _INT}, {}, {"dropped": 7}, {}, ({"dropped": 7}, {"dropped": None})),
    Change(
        "a column is renamed",
        {"old_name": _TEXT},
        {"new_name": _TEXT},
        {"old_name": "x"},
        {"new_name": "y"},
        ({"old_name": "x", "new_name": None}, {"old_name": None, "new_name": "y"}),
    ),
    _column("integer to bigint", "whole", _INT, wire.optional(wire.INT64), 7, 1 << 40),
    _column("real to double precision", "floating", wire.optional(wire.FLOAT), wire.optional(wire.DOUBLE), 0.5, 0.1),
    _column(
        "numeric(4,2) to numeric(6,3)",
        "digits",
        _number(4, 2),
        _number(6, 3),
        _unscaled(499),
        _unscaled(123_456),
        shown=(Decimal("4.990"), Decimal("123.456")),
    ),
    _column("bigint to integer", "narrowed", wire.optional(wire.INT64), _INT, 1 << 40, 7),
    _column(
        "numeric(6,3) to numeric(4,2)",
        "fewer_digits",
        _number(6, 3),
        _number(4, 2),
        _unscaled(123_456),
        _unscaled(499),
        shown=(Decimal("123.456"), Decimal("4.990")),
    ),
    _variant("text to integer", "to_number", _TEXT, _INT, "x", 7, "to_number__int"),
    _variant("integer to text", "to_text", _INT, _TEXT, 7, "x", "to_text__string"),
    _column("NOT NULL is dropped", "loosened", wire.STRING, _TEXT, "x", None),
    _column("NOT NULL is set", "tightened", _TEXT, wire.STRING, None, "x"),
    _column("a default is set", "defaulted", _TEXT, wire.defaulted(_TEXT, "x"), None, "y"),
    _column(
        "an enum gets another value", "mood", wire.enum("sad", "ok"), wire.enum("sad", "ok", "happy"), "ok", "happy"
    ),
    _column("a comment is set", "commented", _TEXT, {**_TEXT, "doc": "what it is called"}, "x", "y"),
    _column("Debezium is upgraded", "plain", _TEXT, _TEXT, "x", "y", debezium=(2, 5)),
    Change(
        "a column whose name differs only in case",
        {"Twin": _TEXT},
        {"twin": _TEXT},
        {"Twin": "x"},
        {"twin": "y"},
        ({"Twin": "x", "twin__string": None}, {"Twin": None, "twin__string": "y"}),
    ),
    Change(
        "the table is re-created with other columns",
        {"left": _TEXT, "same": _TEXT, "other": _TEXT},
        {"same": _TEXT, "other": wire.optional(wire.DATE), "right": _TEXT},
        {"left": "x", "same": "x", "other": "x"},
        {"same": "y", "other": 0, "right": "y"},
        (
            {"left": "x", "same": "x", "other": "x", "other__date": None, "right": None},
            {"left": None, "same": "y", "other": None, "other__date": "1970-01-01", "right": "y"},
        ),
    ),
    _column("the primary key has another column", "part", wire.INT32, wire.INT32, 7, 7, keys=("id", "part")),
)


def tables(changes: Sequence[Change]) -> tuple[wire.Table, wire.Table]:
    """The source's table before and after combined changes."""
    before = {name: kind for change in changes for name, kind in change.before.items()}
    after = {name: kind for change in changes for name, kind in change.after.items()}
    keys = next((change.more["keys"] for change in changes if "keys" in change.more), ("id",))
    return wire.Table(TABLE, {**KEY, **before}, ["id"]), wire.Table(TABLE, {**KEY, **after}, keys)


def value_schemas(changes: Sequence[Change]) -> tuple[wire.Schema, wire.Schema]:
    """The schemas of events before and after them."""
    before, after = tables(changes)
    debezium = next((change.more["debezium"] for change in changes if "debezium" in change.more), wire.LATEST)
    return wire.envelope(before, debezium), wire.envelope(after)


def text_of(schema: wire.Schema) -> str:
    """The Avro text of a schema."""
    return wire.json_text(wire.avro_schema(schema)).decode()


def steps_of(changes: Sequence[Change]) -> Sequence[SchemaStep]:
    """The steps of silver's columns that the code computes for the changes.

    Raises:
        UnsupportedError: the primary key changed.
    """
    was, is_now = ([WriterSchema(text_of(schema))] for schema in value_schemas(changes))
    key_was, key_is_now = ([WriterSchema(text_of(table.key))] for table in tables(changes))
    first = evolve_layout(TABLE, sent_columns([one.tree for one in key_was], was, was[0]))
    return evolve_layout(
        TABLE, sent_columns([one.tree for one in key_is_now], is_now, is_now[0]), stored=first.layout
    ).steps


def outcome(change: Change, policy: Evolution) -> str:
    """The outcome of a change: a cell of the page."""
    try:
        steps = steps_of([change])
        check_steps(TABLE, steps, policy)
    except ConfigError as error:
        return f"stops, {error.code}"
    return "; ".join(step.words for step in steps) or "nothing changes"


_HEAD = """# Schema evolution

Bronze stores bytes, so its columns never change. For silver, set `schema.evolution` of the table:

| setting | result |
|---|---|
| `evolve` (default) | columns are added; types become wider; values of an incompatible type go to a variant column |
| `add_only` | columns are added; a change of a type stops the table's run with exit code 2 |
| `freeze` | any of these changes stops the table's run |

A table that stops does not commit the batch, and its error names each rejected change; other tables continue. Old and
new records may be mixed in a batch while a connector catches up, because each record is decoded with its own schema.

| change at the source | `evolve` | `add_only` | `freeze` |
|---|---|---|---|
"""

_TAIL = """
The code computes this table, and `tests/engines/test_evolution.py` checks each cell with real tables of each
type. `python -m tests.docs.pages` writes this page.

- **Wider types** are int to bigint, float to double, and decimals with more digits before or after the point (up to
  38). Then the rows are rewritten without changes, in a separate commit, so that all readers of the table's format can
  read them. `cdc-lake plan` shows the number of bytes before. A primary key may become wider too.
- **Variant columns** have values of an incompatible type. If `price` changes from text to integer, silver has `price`
  and `price__int`. Each row has its value in one of them and null in the other. To read both, use
  `coalesce(price__int, try_cast(price AS int))`. Silver's commits store which column belongs to which, so a rebuild
  gives the same names. To have one column instead, set its type: `schema.cast: {price: string}`.
- **Dropped columns** stay in silver. Later rows have null there; the report names such columns once.
- **Renamed columns** are a dropped and a new column, because nothing in the events connects them. To continue with the
  old column, set `schema.rename: {new_name: old_name}`.
- **Defaults of new columns.** The source sets them in existing rows without events, so silver has null.
  `cdc-lake reconcile` finds these rows, and an incremental snapshot of the table sends their values.
- **Another primary key** needs a new snapshot and a rebuild with the new key
  ([rebuild](../how-to/rebuild.md#after-a-change-of-the-primary-key)).
- **Changes by other programs.** If another program renames or removes a column of silver in Delta or Iceberg, the next
  run stops with exit code 2 and names the fix. The same happens if a constraint or `delta.appendOnly` that someone set
  rejects the run's rows.
- **Invalid names** are the empty name, names with spaces, control characters or `,;{}()=`, and those of cdc_lake's own
  columns and of Hudi's. A silver table in Hudi also needs names of letters, digits and `_`. Bronze quarantines records
  with such names, and other records of the table continue. Set `schema.rename` or `schema.exclude`, then
  [replay the records](../how-to/quarantine.md). Avro records cannot have such names, because Debezium replaces
  characters by `_` with `field.name.adjustment.mode=avro`. JSON records can. A silver table in Iceberg cannot
  have the names of Iceberg's own columns either, such as `_file`.
- **Enums** are texts. Values that the schema does not list are accepted.

## Choosing columns

| setting | result |
|---|---|
| `schema.exclude: [secret]` | silver does not have the source's column; bronze does |
| `schema.rename: {full_name: name}` | silver's column is `name`; source columns of different schemas may share it |
| `schema.cast: {code: string}` | the silver column with this name always has this type |

If values do not fit the type in `schema.cast`, the table's run stops (exit 30), and the error counts them. The batch is
not committed; earlier batches stay. Rows that are already in silver do not change: run `cdc-lake rebuild` to apply
these settings to all rows.

## Nulls that arrive as defaults

If a column is nullable and has a default, the converter replaces nulls by the default, and cdc_lake cannot recognize
this. Silver's report names such columns when their schema is new. With Confluent's converter, set
`value.converter.ignore.default.for.nullables=true`. Apicurio's converter has no such setting: remove the column's
default, or set NOT NULL.
"""


def page() -> str:
    """The text of docs/reference/evolution.md."""
    rows = [f"| {one.name} | {' | '.join(outcome(one, policy) for policy in POLICIES)} |" for one in CHANGES]
    return _HEAD + "\n".join(rows) + "\n" + _TAIL
