"""The changes of a source table's columns, and docs/reference/evolution.md, which says what becomes of each.

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
    """A change of some columns, which no other change has.

    Attributes:
        name: what it is, as the page says it.
        before, after: the columns.
        old, new: what a row holds that is sent before it, and after it.
        shown: what silver then shows of both.
        more: what else of the schema is another: the version of Debezium, columns of the primary key.
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
        """Whether it can come together with others."""
        return not self.more


def _column(name: str, column: str, before: wire.Schema, after: wire.Schema, old: Any, new: Any, **more: Any) -> Change:
    """A change of one column, which silver's column of that name takes."""
    shown = more.pop("shown", (old, new))
    was, is_now = ({column: value} for value in shown)
    return Change(name, {column: before}, {column: after}, {column: old}, {column: new}, (was, is_now), more)


def _beside(name: str, column: str, before: wire.Schema, after: wire.Schema, old: Any, new: Any, beside: str) -> Change:
    """A change of one column's type, whose new values stand beside the old ones."""
    shown = {column: old, beside: None}, {column: None, beside: new}
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
    _beside("text to integer", "to_number", _TEXT, _INT, "x", 7, "to_number__int"),
    _beside("integer to text", "to_text", _INT, _TEXT, 7, "x", "to_text__string"),
    _column("NOT NULL is taken off", "loosened", wire.STRING, _TEXT, "x", None),
    _column("NOT NULL is set", "tightened", _TEXT, wire.STRING, None, "x"),
    _column("a default is given", "defaulted", _TEXT, wire.defaulted(_TEXT, "x"), None, "y"),
    _column(
        "an enum has another value", "mood", wire.enum("sad", "ok"), wire.enum("sad", "ok", "happy"), "ok", "happy"
    ),
    _column("a comment is set", "commented", _TEXT, {**_TEXT, "doc": "what it is called"}, "x", "y"),
    _column("Debezium is upgraded", "plain", _TEXT, _TEXT, "x", "y", debezium=(2, 5)),
    Change(
        "another column whose name differs in case only",
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
    """The source's table before and after changes that come together."""
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
    """What changes of the columns mean for silver, as the code says.

    Raises:
        UnsupportedError: the primary key is another.
    """
    was, is_now = ([WriterSchema(text_of(schema))] for schema in value_schemas(changes))
    key_was, key_is_now = ([WriterSchema(text_of(table.key))] for table in tables(changes))
    first = evolve_layout(TABLE, sent_columns([one.tree for one in key_was], was, was[0]))
    return evolve_layout(
        TABLE, sent_columns([one.tree for one in key_is_now], is_now, is_now[0]), stored=first.layout
    ).steps


def outcome(change: Change, policy: Evolution) -> str:
    """What becomes of a change: a cell of the page."""
    try:
        steps = steps_of([change])
        check_steps(TABLE, steps, policy)
    except ConfigError as error:
        return f"stops, {error.code}"
    return "; ".join(step.words for step in steps) or "nothing changes"


_HEAD = """# Schema evolution

Bronze holds bytes and never changes its shape. What silver does is the table's `schema.evolution`:

| setting | meaning |
|---|---|
| `evolve` (default) | columns are added; types become wider; values of a type that does not fit get a variant column |
| `add_only` | columns are added; a change of a type stops the table's run with exit code 2 |
| `freeze` | any of this stops it |

A run that stops has written nothing, names each change it was not allowed, and leaves the other tables alone. Old and
new records may be mixed in a batch, as they are while a connector catches up: each is decoded with its own schema.

| change at the source | `evolve` | `add_only` | `freeze` |
|---|---|---|---|
"""

_TAIL = """
This table is computed by the code, and real tables in Delta and in both types of Hudi are held to each of its cells
(`tests/engines/test_evolution.py`; `python -m tests.docs.pages` writes this page).

- **Wider** are int to bigint, float to double, and decimals with more digits before or behind the point (38 at most).
  The rows are then rewritten unchanged, in a commit of their own, so that every reader of the table's format reads it.
  `cdc-lake plan` says beforehand how many bytes that is. A primary key may become wider, too.
- **Variant columns** hold values of any other type. If `price` changes from text to integer, silver has `price` and
  `price__int`. A row has its value in one of them, null in the other: `coalesce(price__int, try_cast(price AS int))`
  reads both. Silver's commits store which column belongs to which, so a rebuild gives the same names. To have
  one column instead, name its type: `schema.cast: {price: string}`.
- **Dropped** columns stay. Rows written from then on have null there; the report names them once.
- **Renamed** columns are a dropped and a new one: nothing in the events links them.
  `schema.rename: {new_name: old_name}` goes on with the old column.
- **A default** of a new column is not in the rows that were there before: the source changes them without an event.
  Silver has null, `cdc-lake reconcile` finds them, and an incremental snapshot of the table brings them.
- **Another primary key** needs a new snapshot and a rebuild by the new key
  ([rebuild](../how-to/rebuild.md#after-a-change-of-the-primary-key)).
- **Changed by hand.** If another program renames or removes a column of silver in Delta, the next run stops with exit
  code 2 and says how to undo that. So it does if a constraint or `delta.appendOnly`, set by hand, refuses its rows.
- **Names** that no table can have (the empty one; with spaces, control characters or `,;{}()=`; those of cdc_lake's own
  columns and of Hudi's) are found when bronze lands a record. A table with silver in Hudi also needs names of letters,
  digits and `_`. Such records are quarantined, and the table's other records go on. Set `schema.rename` or
  `schema.exclude`, then [replay them](../how-to/quarantine.md). In Avro such names cannot occur: Debezium writes
  `_` with `field.name.adjustment.mode=avro`. They come as JSON.
- **Enums** are texts; a value that the schema does not list is taken like the others.

## Choosing columns

| setting | meaning |
|---|---|
| `schema.exclude: [secret]` | the source's column is not in silver; bronze has it |
| `schema.rename: {full_name: name}` | silver's column is called `name`; several may become one, not two of one schema |
| `schema.cast: {code: string}` | silver's column, by its name there, always has this type |

A value that does not go into the type that `schema.cast` names stops the run (exit 30) and says how many there are. Its
batch is not committed; earlier batches stay. What is already in silver stays as it is: run `cdc-lake rebuild` to apply
these settings to all rows.

## Nulls that arrive as defaults

Where a column may be null and has a default, a null arrives as the default: the converter does it, and nothing behind
it can tell. Silver's report names such columns when their schema is new. With Confluent's converter set
`value.converter.ignore.default.for.nullables=true`; Apicurio's has no such setting: take the default off the column,
or set NOT NULL.
"""


def page() -> str:
    """The text of docs/reference/evolution.md."""
    rows = [f"| {one.name} | {' | '.join(outcome(one, policy) for policy in POLICIES)} |" for one in CHANGES]
    return _HEAD + "\n".join(rows) + "\n" + _TAIL
