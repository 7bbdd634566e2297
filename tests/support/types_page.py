"""docs/reference/types.md, made from the mapping and from how the sources' types arrive."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from cdc_lake.decode.schemas import parse
from cdc_lake.decode.trees import Tree, connect_name, non_null
from cdc_lake.decode.types import RULES, plain_type, type_mapping
from support.source_types import DEFAULTS, POSTGRES, SOURCES, Arrival, any_precision, array, decimal, time

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "types.md"

_HEAD = """# Types

The silver type of each source type, and what is lost on the way. `python -m tests.docs.pages` generates this page from
the mapping in `cdc_lake/decode/types.py`. `tests/servers/test_live_types.py` checks every Postgres row against the real
servers: it sends random rows of every type through Debezium, under every setting named here. Silver must equal Postgres
except for the losses listed in the row, and each listed loss must occur. A row without a listed loss loses nothing. In
Hudi tables `smallint` is stored as `int`, in arrays and structs too, because Hudi keeps its schema in Avro, which has
no smaller integer.

## The mapping

The Avro type of a value and its Kafka Connect name (`connect.name`) decide. Names that are not listed have no effect.
"""

_POLICIES = """
- **Dates and timestamps** are those of the years 1 to 9999; everything else, infinities among it, is null: no
  reader of the tables holds it. Timestamps without a time zone are held as `timestamp` with the UTC wall clock.
- **Times of day and durations** are microseconds, so that another `time.precision.mode` does not change a column's
  type; 24:00:00 is 86400000000.
- **Decimals** of up to 38 digits are decimals. Wider ones, those of a column that does not tell its precision (Avro
  then says 64, as for Postgres' `money`), and those with a scale of their own each (`numeric` without precision,
  Oracle's `NUMBER`) are exact plain text of up to 1,000 digits, the most that a Postgres `numeric` can declare. A
  longer number quarantines its record (`number_too_long`), because the time to write it out grows with the square of
  its length: the 131,072 digits that an undeclared `numeric` can hold take minutes. With
  `decimal.handling.mode=string` on the connector, such numbers arrive as text and land. A value with more digits than
  its column declares quarantines its record, too.
- **A key** must not lose anything, or two rows would become one. A key column with a value that its type cannot
  hold (an infinite date, a time finer than a microsecond) is a problem of its record (`key_problem` in
  `cdc_lake/decode/key.py`). What is lost before Kafka cannot be seen: a key of dates before 1582-10-15 may arrive as
  another one in a snapshot than in the stream. There a date before Christ arrives as the same date after Christ, which
  is another row's key: silver then has one row of the two. `cdc-lake reconcile` finds the missing row.
- **Values that were not sent** keep the column's value
  ([placeholders](../explanation/ordering-and-deletes.md#placeholders)). Postgres' arrays of numbers
  with a fraction, of times, of ranges and the like have no placeholder: left alone by an update when they are
  large, they arrive as null. Name such columns in `envelope.null_means_unchanged`, or set REPLICA IDENTITY FULL.
- **A value that equals the placeholder** (`__debezium_unavailable_value` in a text, for example) cannot be told from
  one that was not sent. Silver keeps what it had, or null.
- **Postgres' `timetz` in a zone with seconds** (`10:00:00+01:00:30`) arrives as null in a snapshot. In the stream it
  stops the connector. An empty `varbit(1)` stops it in the snapshot.
- **Null in a column that has a default** arrives as the default: the converters do it, for every source. In a
  column that may not be null, so does a value that Debezium cannot convert, such as NaN.
- **Postgres' arrays of several dimensions** arrive as nulls, for elements of every type; those of texts, uuids
  and JSON as names of Java objects (`[Ljava.lang.String;@6ff90734`).
- **Without Connect's names** (`connect.meta.data=false` on the converter) only widths are left: dates, times and
  timestamps stay the plain numbers or texts they are sent as, small whole numbers become `int`; decimals are still
  decimals.
- **`time.precision.mode=structured`** (Debezium 3.7) sends dates and times as records of their parts; these stay
  structs.
- **Enums** may hold values that are not in the list the schema knows: the list is not checked.
"""

_NOTES = {
    "Postgres": "As Debezium 3.6 sends them; citext, isbn, ltree, hstore and PostGIS as its documentation says.",
    "MySQL and MariaDB": "As Debezium's documentation declares them; `time.precision.mode` is "
    "`adaptive_time_microseconds` unless set. A `TIME` may be negative and longer than a day.",
    "SQL Server": "As Debezium's documentation declares them.",
    "Oracle": "As Debezium's documentation declares them. Large objects need `lob.enabled`.",
    "MongoDB": "A row is one column `document`, JSON text, next to the key's `id`. An update without a full document "
    "cannot be applied and is a problem of its record (`row_problem` in `cdc_lake/decode/envelope.py`): set "
    "`capture.mode=change_streams_update_full`.",
}


def page() -> str:
    """The page's text."""
    parts = [_HEAD, *_table(("Avro", "Connect name", "column", "losses"), _mapping_rows()), _POLICIES]
    for source, arrivals in SOURCES.items():
        parts += [f"\n## {source}\n\n{fill(_NOTES[source], 120)}\n", *_table(_HEADINGS, map(_row, arrivals))]
    settings = ", ".join(f"`{name}={value}`" for name, value in DEFAULTS.items())
    last = f"Where a setting is not named, the row is the same for all of its values. Defaults: {settings}."
    parts.append(f"\n{fill(last, 120, break_on_hyphens=False)}\n")
    return "\n".join(parts)


_HEADINGS = ("source type", "setting", "arrives as", "column", "losses")


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(headings)} |"
    yield f"|{'---|' * len(headings)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def _mapping_rows() -> Iterator[Sequence[str]]:
    for (kind, name), held in RULES.items():
        yield f"`{kind}`", f"`{name}`" if name else "", f"`{held.type}`", "; ".join(held.losses)
    decimals = "`org.apache.kafka.connect.data.Decimal`"
    yield "`int` of `connect.type` int8, int16", "", f"`{_held({'type': 'int', 'connect.type': 'int16'})}`", ""
    yield "`bytes`, up to 38 digits", decimals, f"`{_held(decimal(4, 2))}`, for example", ""
    yield "`bytes`, more digits or an unknown number", decimals, f"`{_held(any_precision(2))}`", ""
    yield "array", "any", f"`{_held(array(time('int', 'Date')))}`, for example", "what its elements lose"
    yield "map", "any", f"`{_held({'type': 'map', 'values': 'string'})}`, for example", "what its values lose"
    yield "record", "any other", "a struct of its fields", "what its fields lose"


def _held(schema: Any) -> str:
    return type_mapping(parse(json.dumps(schema))).type


def _row(arrival: Arrival) -> Sequence[str]:
    settings = "; ".join(f"{name}={' or '.join(values)}" for name, values in arrival.settings.items())
    types = ", ".join(f"`{kind}`" if " " not in kind or "(" in kind else kind for kind in arrival.types)
    if arrival.schema is None:
        return types, settings, "", "none", "; ".join(arrival.losses)
    tree = parse(json.dumps(arrival.schema))
    held = type_mapping(tree)
    # Of a Postgres row all is known; what the others lose in the table comes on top of what they lose before it.
    losses = arrival.losses if arrival in POSTGRES and arrival.is_live else (*arrival.losses, *held.losses)
    return types, settings, _described(tree), f"`{plain_type(held.type)}`", "; ".join(dict.fromkeys(losses))


def _described(tree: Tree) -> str:
    """A schema in a few words."""
    tree = non_null(tree)
    name = (connect_name(tree) or "").removeprefix("io.debezium.").removeprefix("org.apache.kafka.")
    if tree["type"] == "array":
        inner = f"array of {_described(tree['items'])}"
        return f"{inner} ({name})" if name else inner
    return " ".join(part for part in (tree["type"], tree.get("connect.type"), name) if part)
