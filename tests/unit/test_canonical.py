"""Joined texts can be split again, with any content, and the loss rules get the values."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from cdc_lake.errors import UnsupportedError
from cdc_lake.reconcile.canonical import rule, shared_columns, split_texts
from cdc_lake.reconcile.comparison import NEVER_THERE, Differences, RowDifference, TextRow
from cdc_lake.reconcile.postgres_catalog import NOT_SENT, SourceColumn, SourceTable

pytestmark = pytest.mark.core


def column(kind: str, name: str = "c", **traits: Any) -> SourceColumn:
    known = dict.fromkeys(("is_array", "has_default", "is_generated", "is_unique", "is_reference"), False)
    return SourceColumn(name, kind, traits.pop("typtype", "b"), is_nullable=True, key_place=None, **{**known, **traits})


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ()),
        ("+a\x01,", ("a",)),
        ("+\x01,-\x01,", ("", None)),
        ("+-\x01,++\x01,", ("-", "+")),
        ("+a\x01.,b\x01,", ("a\x01,b",)),
        ("++x\x01.,-\x01.,\x01,", ("+x\x01,-\x01,",)),
    ],
)
def test_joined_texts_are_split_again(text: str, parts: tuple[str | None, ...]) -> None:
    assert split_texts(text) == parts


@pytest.mark.parametrize(
    ("kind", "held", "text", "value"),
    [
        ("date", DateType(), "-1", date(1969, 12, 31)),
        ("date", DateType(), "-735000", Decimal(-735_000)),
        ("date", DateType(), "-infinity", Decimal("-Infinity")),
        ("timestamptz", TimestampType(), "1", datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
        ("timestamp", TimestampType(), "999999999999999999", Decimal(999_999_999_999_999_999)),
        ("numeric", DecimalType(4, 2), "NaN", Decimal("NaN")),
        ("numeric", StringType(), "1.5", Decimal("1.5")),
        ("text", StringType(), "1", "1"),
    ],
)
def test_text_is_read_as_the_value_for_loss_rules(kind: str, held: DataType, text: str, value: Any) -> None:
    found = rule(column(kind), held)

    assert found is not None
    assert repr(found.read(text)) == repr(value)


def test_arrays_are_read_as_tuples_and_nested_ones_are_marked() -> None:
    found = rule(column("int4", is_array=True), ArrayType(IntegerType()))

    assert found is not None
    assert found.read("+1\x01,-\x01,") == (1, None)
    assert found.read("#+1\x01,-\x01,") == ((1, None),)


@pytest.mark.parametrize(
    ("kind", "held"),
    [("bytea", StringType()), ("interval", StringType()), ("hstore", StringType()), ("int4", BinaryType())],
)
def test_incomparable_types_are_not_compared(kind: str, held: DataType) -> None:
    assert rule(column(kind), held) is None
    assert rule(column(kind, is_array=True), held) is None


TABLE = SourceTable(
    "public", "thing", (column("int4", "id"), column("text", "my name"), column("bytea", "raw"), column("box", "b"))
)
SILVER = StructType(
    [
        StructField("id", IntegerType()),
        StructField("my_name", StringType()),
        StructField("raw", StringType()),
        StructField("old", StringType()),
        StructField("__op", StringType()),
    ]
)


def holding(name: str) -> list[str]:
    return [name] if name in SILVER.names else []


def test_variant_columns_are_compared_only_if_all_are_comparable() -> None:
    table = SourceTable("public", "thing", (column("int4", "id"), column("int4", "price"), column("date", "day")))
    silver = StructType(
        [
            StructField("id", IntegerType()),
            StructField("price", StringType()),
            StructField("price__int", IntegerType()),
            StructField("day", StringType()),
            StructField("day__date", DateType()),
        ]
    )

    shared, reasons = shared_columns(
        table, silver, ["id"], lambda name: [one for one in silver.names if one.split("__")[0] == name]
    )

    assert [list(one.rules) for one in shared.others] == [["price", "price__int"]]
    assert reasons == {"day": "silver stores it as string and date, the source as date"}


def test_each_uncompared_column_gives_the_reason() -> None:
    shared, reasons = shared_columns(TABLE, SILVER, ["id"], holding)

    assert [list(one.rules) for one in (*shared.key, *shared.others)] == [["id"], ["my_name"]]
    assert shared.has_number_as_key
    assert reasons == {
        "raw": "silver stores it as string, the source as bytea",
        "b": NOT_SENT,
        "old": "the source does not have it",
    }


def test_uncomparable_key_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"silver's key \(id, raw\)"):
        shared_columns(TABLE, SILVER, ["id", "raw"], holding)


def test_rows_are_matched_by_key_and_duplicate_keys_are_repeated() -> None:
    shared, _ = shared_columns(TABLE, SILVER, ["id"], holding)
    source = [TextRow(key, ("x",)) for key in (1, 2, 4, 5, 6)]
    silver = [TextRow(key, ("x",)) for key in (2, 2, 3, 3, 4)]
    silver += [TextRow(5, (None,), ("my_name",)), TextRow(6, ("y",))]
    found = Differences(shared, kept=3)

    found.compare(iter(source), iter(silver))

    assert found.counts == {"missing": 1, "repeated": 2, "extra": 1, "changed": 1}
    assert found.losses == {NEVER_THERE: 1}
    assert found.first == [RowDifference("missing", 1), RowDifference("repeated", 2), RowDifference("extra", 3)]
    assert shared.key_values(6) == {"id": "6"}


def test_missing_key_before_christ_may_be_another_key() -> None:
    table = SourceTable("public", "thing", (column("date", "day"), column("int4", "id"), column("text", "my_name")))
    fields = [StructField("day", DateType()), StructField("id", IntegerType()), StructField("my_name", StringType())]
    shared, _ = shared_columns(table, StructType(fields), ["day", "id"], lambda name: [name])
    days = [
        "-735599",
        "-141427",
        "-141429",
        "0",
    ]  # 44 BC, the first day of the current calendar, one before it that does not exist, 1970
    keys = [f"+{day}\x01,+1\x01," for day in days]
    found = Differences(shared, kept=9)

    found.compare(iter([TextRow(key, ("x",)) for key in keys]), iter([]))

    assert [shared.may_be_another_key(key) for key in keys] == [True, False, True, False]
    assert (found.counts["missing"], found.lost_keys) == (4, 2)
    assert shared.key_values(keys[0]) == {"day": "-735599", "id": "1"}
