"""docs/reference/types.md, generated from the type mapping and from the schemas that connectors send."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from cdc_lake.decode.schemas import Tree, connect_name, non_null, parse
from cdc_lake.decode.types import RULES, plain_type, type_mapping
from support.source_types import DEFAULTS, POSTGRES, SOURCES, Arrival, any_precision, array, decimal, time

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "types.md"

_HEAD = """# Types

This page lists the silver type of each source type, and the values that are lost on the way.
`python -m tests.docs.pages` generates it from the mapping in `cdc_lake/decode/types.py`.
`tests/servers/test_live_types.py` checks every Postgres row with the real servers. It sends random rows of every type
through Debezium, with every setting on this page. Silver must equal Postgres except for the losses in the row, and each
of these losses must occur. In Hudi and Iceberg tables `smallint` is stored as `int`, also in arrays and structs: these
formats have no smaller integer.

## The mapping

A column's type depends on the value's Avro type and its Kafka Connect name (`connect.name`). Names that are not listed
have no effect.
"""

_POLICIES = """
- **Dates and timestamps** outside the years 1 to 9999, including infinities, become null, because readers of the
  tables do not support them. Timestamps without a time zone are stored as `timestamp` with the UTC wall clock.
- **Times of day and durations** are microseconds, so that another `time.precision.mode` does not change a column's
  type; 24:00:00 is 86400000000.
- **Decimals** of up to 38 digits are decimals. Other numbers are exact plain text of up to 1,000 digits, the maximum
  that a Postgres `numeric` can declare. These are wider decimals, decimals of columns without a declared precision
  (the Avro schema then has 64, as for Postgres' `money`), and decimals whose values have different scales (`numeric`
  without precision, Oracle's `NUMBER`). A record with a longer number is quarantined (`unfit_value`), because the
  time to write a number grows with the square of its length: the 131,072 digits that an undeclared `numeric` may have
  take minutes. With `decimal.handling.mode=string` on the connector, such numbers arrive as text and land. A record
  with a value that has more digits than its column declares is quarantined too, in every format. In JSON, decimals may
  be Base64 or numbers (`decimal.format`).
- **Keys** must not lose anything, because two rows could become one. If a key has a value that its column's type does
  not support (an infinite date, a time finer than a microsecond), the record is quarantined (`key_problem` in
  `cdc_lake/decode/key.py`). Losses before Kafka cannot be detected. A date before 1582-10-15 in a key may differ
  between snapshot and stream. In a snapshot, a date before Christ arrives as the same date after Christ, which may be
  another row's key; then silver has one row instead of two. `cdc-lake reconcile` finds the missing row.
- **Values that were not sent** keep the column's value
  ([placeholders](../explanation/ordering-and-deletes.md#placeholders)). Postgres' arrays of numbers with a fraction, of
  times, of ranges and some others have no placeholder: if they are large and an update does not change them, they
  arrive as null. List such columns in `envelope.null_means_unchanged`, or set REPLICA IDENTITY FULL.
  [Connectors](connectors.md#partial-rows) has the columns that other connectors leave out.
- **SQL Server's `(max)` columns** (`VARCHAR(MAX)`, `NVARCHAR(MAX)`, `VARBINARY(MAX)`) send the placeholder since
  Debezium 3.6 if an update leaves them unchanged. Older connectors send null: list them in
  `envelope.null_means_unchanged`.
- **`EnforceRecordSize`** (Debezium 3.6) cuts long texts and bytes so that a record fits, and does not mark them. Silver
  stores the cut values. A cut JSON or XML text may be invalid.
- **Values that equal the placeholder** (for example a text `__debezium_unavailable_value`) cannot be distinguished from
  values that were not sent. Silver keeps the former value, or null.
- **Postgres' `timetz` in a zone with seconds** (`10:00:00+01:00:30`) arrives as null in a snapshot. In the stream it
  stops the connector. An empty `varbit(1)` stops it in the snapshot.
- **Null in a column with a default** arrives as the default: the converters replace it, for every source. In a column
  that is not nullable, values that Debezium cannot convert, such as NaN, also arrive as the default.
- **Postgres' arrays of several dimensions** arrive as nulls, for elements of every type; those of texts, uuids
  and JSON as names of Java objects (`[Ljava.lang.String;@6ff90734`).
- **Without Connect's names** (`connect.meta.data=false` on the converter), dates, times and timestamps stay the numbers
  or texts that were sent, and small integers become `int`. Decimals are still decimals.
- **`time.precision.mode=structured`** (Debezium 3.7) sends dates and times as records of their parts; these stay
  structs, so that infinities, zero dates and nanoseconds stay too.
- **Geometric types** (`box`, `line`, `lseg`, `path`, `polygon`, `circle`) arrive as records since Debezium 3.7, and
  geometries have a new field `extensions`. After an upgrade, such values go to a
  [variant column](evolution.md).
- **Enums** may have values that the schema does not list, because the list is not checked.
"""

_NOTES = {
    "Postgres": "Observed with Debezium 3.6; citext, isbn, ltree, hstore and PostGIS from its documentation.",
    "MySQL and MariaDB": "From Debezium's documentation; `time.precision.mode` is `adaptive_time_microseconds` unless "
    "set. A `TIME` may be negative and longer than a day.",
    "SQL Server": "From Debezium's documentation.",
    "Oracle": "From Debezium's documentation. Large objects need `lob.enabled`.",
    "MongoDB": "A row is one column `document`, JSON text, and the key's `id`. An update without a full document "
    "cannot be applied, so the record is quarantined (`row_problem` in `cdc_lake/decode/envelope.py`): set "
    "`capture.mode=change_streams_update_full`.",
}


def page() -> str:
    """The page's text."""
    parts = [_HEAD, *_table(("Avro", "Connect name", "column", "losses"), _mapping_rows()), _POLICIES]
    for source, arrivals in SOURCES.items():
        parts += [f"\n## {source}\n\n{fill(_NOTES[source], 120)}\n", *_table(_HEADINGS, map(_row, arrivals))]
    settings = ", ".join(f"`{name}={value}`" for name, value in DEFAULTS.items())
    last = f"If a row names no setting, it applies to all of its values. Defaults: {settings}."
    parts.append(f"\n{fill(last, 120, break_on_hyphens=False)}\n")
    return "\n".join(parts)


_HEADINGS = ("source type", "setting", "arrives as", "column", "losses")


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(headings)} |"
    yield f"|{'---|' * len(headings)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def _mapping_rows() -> Iterator[Sequence[str]]:
    for (kind, name), mapping in RULES.items():
        yield f"`{kind}`", f"`{name}`" if name else "", f"`{mapping.type}`", "; ".join(mapping.losses)
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
    # Postgres rows list all losses; other rows list only those before Kafka.
    losses = arrival.losses if arrival in POSTGRES and arrival.is_live else (*arrival.losses, *held.losses)
    return types, settings, _described(tree), f"`{plain_type(held.type)}`", "; ".join(dict.fromkeys(losses))


def _described(tree: Tree) -> str:
    """A short description of a schema."""
    tree = non_null(tree)
    name = (connect_name(tree) or "").removeprefix("io.debezium.").removeprefix("org.apache.kafka.")
    if tree["type"] == "array":
        inner = f"array of {_described(tree['items'])}"
        return f"{inner} ({name})" if name else inner
    return " ".join(part for part in (tree["type"], tree.get("connect.type"), name) if part)
