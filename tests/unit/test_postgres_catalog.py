"""Known losses before Kafka are distinguished from real differences by Postgres' catalog alone."""

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from support.source_columns import PLAIN

from cdc_lake.demo.comparer import Difference, Kind
from cdc_lake.reconcile import postgres_catalog as catalog
from cdc_lake.reconcile.postgres_catalog import SourceTable, in_the_lake

pytestmark = pytest.mark.core

PLACEHOLDER = "__debezium_unavailable_value"
A_DATE_ARRAY = {"type": "date", "is_array": True}


def loss(source: object, lake: object, found: Kind = "cell", **traits: Any) -> str | None:
    """The loss that explains a difference in a column with these properties."""
    table = SourceTable("public", "thing", (replace(PLAIN, **traits),))
    return table.loss(Difference(found, (1,), "a column", source, lake))


@pytest.mark.parametrize(
    ("traits", "source", "lake", "known"),
    [
        ({"has_default": True}, None, "the default", catalog.NULL_AS_DEFAULT),
        ({"type": "numeric"}, Decimal("NaN"), None, catalog.NOT_FINITE),
        ({"type": "numeric", "has_default": True}, Decimal("-Infinity"), Decimal(1), catalog.NOT_FINITE),
        ({"type": "numeric", "is_array": True}, (Decimal(1), Decimal("NaN")), None, catalog.NOT_FINITE),
        ({"type": "timestamptz"}, Decimal("Infinity"), None, catalog.NOT_FINITE),
        ({"type": "date"}, Decimal(-735_000), None, catalog.OUT_OF_CALENDAR),
        ({"is_generated": True}, "computed", None, catalog.GENERATED),
        ({}, PLACEHOLDER, None, catalog.LIKE_PLACEHOLDER),
        ({"is_array": True}, (PLACEHOLDER,), ("before",), catalog.LIKE_PLACEHOLDER),
        ({"type": "bytea"}, PLACEHOLDER.encode(), b"before", catalog.LIKE_PLACEHOLDER),
        ({"type": "timetz"}, "10:00:00.5+01:00:30", None, catalog.ZONE_WITH_SECONDS),
        ({"type": "name"}, "pg_class", None, catalog.NOT_SENT),
        ({"type": "Mood", "typtype": "e", "is_array": True}, ("sad", None), None, catalog.NULL_IN_ARRAY),
        ({"type": "float8", "is_array": True}, (1.5,) * 1000, None, catalog.LARGE_ARRAY),
        ({"type": "date"}, date(1582, 10, 10), date(1582, 10, 20), catalog.OTHER_CALENDAR),
        ({"type": "date"}, Decimal(-735_000), date(43, 3, 15), catalog.OTHER_CALENDAR),
        (A_DATE_ARRAY, (date(2024, 1, 1), Decimal(5_000_000)), (date(2024, 1, 1), None), catalog.OUT_OF_CALENDAR),
        (A_DATE_ARRAY, (Decimal("-Infinity"), None), (None, None), catalog.NOT_FINITE),
        (
            {"type": "timestamptz", "is_array": True},
            (datetime(1500, 1, 1, 12, tzinfo=UTC),),
            (datetime(1500, 1, 10, 12, tzinfo=UTC),),
            catalog.OTHER_CALENDAR,
        ),
        ({"type": "time", "is_array": True}, (Decimal(86_400_000_000), Decimal(1_999)), (0, 1_000), catalog.CUT_TIME),
        ({"type": "interval"}, Decimal(5_000_001), 5_000_000, catalog.ROUNDED_INTERVAL),
        ({"type": "int4", "is_array": True}, ((1, 2, 3, 4),), (None, None), catalog.SEVERAL_DIMENSIONS),
        ({"type": "int4", "is_array": True}, ((7, 8),), (None, None), catalog.SEVERAL_DIMENSIONS),
        (
            {"type": "text", "is_array": True},
            (("a", "b"),),
            ("[Ljava.lang.String;@6ff90734",),
            catalog.SEVERAL_DIMENSIONS,
        ),
    ],
    ids=str,
)
def test_known_loss_is_named(traits: dict[str, Any], source: object, lake: object, known: str) -> None:
    assert loss(source, lake, **traits) == known


@pytest.mark.parametrize(
    ("traits", "source", "lake"),
    [
        ({}, None, "text"),
        ({}, "text", PLACEHOLDER),
        ({}, f"{PLACEHOLDER} ", None),
        ({"type": "inet"}, PLACEHOLDER, None),
        ({"type": "timetz"}, "10:00:00.5+01:00:30", "08:59:31Z"),
        ({"type": "timetz"}, "08:59:30Z", None),
        ({"type": "timetz"}, "32370000000", None),
        ({"has_default": True}, "text", "the default"),
        ({"has_default": True, "is_nullable": False}, None, "the default"),
        ({"type": "numeric"}, Decimal("NaN"), Decimal(0)),
        ({"type": "numeric"}, Decimal(1), None),
        ({"type": "timestamptz"}, datetime(2024, 2, 29, tzinfo=UTC), None),
        ({"is_generated": True}, "computed", "another"),
        ({"type": "Mood", "typtype": "e", "is_array": True}, ("sad",), ("happy",)),
        ({"type": "text", "is_array": True}, ("a", None), None),
        ({"type": "float8", "is_array": True}, (), None),
        ({"type": "float8", "is_array": True}, (1.5,), (2.5,)),
        ({"type": "date"}, date(1582, 10, 15), date(1582, 10, 25)),
        ({"type": "date"}, date(1500, 1, 1), date(1500, 1, 12)),
        ({"type": "date"}, Decimal(5_000_000), date(2024, 1, 1)),
        ({"type": "timestamp"}, datetime(1500, 1, 1), datetime(1500, 1, 10)),
        (A_DATE_ARRAY, (date(1500, 1, 1), date(2024, 1, 1)), (date(1500, 1, 10), date(2024, 1, 2))),
        (A_DATE_ARRAY, (date(1500, 1, 1),), (date(1500, 1, 1), None)),
        ({"type": "time", "is_array": True}, (Decimal(1_999),), (2_000,)),
        ({"type": "time"}, Decimal(1_999), 1_000),
        ({"type": "interval"}, Decimal(5_000_002), 5_000_000),
        ({"type": "int4", "is_array": True}, (1, 2, 3, 4), (1, 2)),
        ({"type": "int4", "is_array": True}, (1, 2), (None, None)),
    ],
    ids=str,
)
def test_other_differences_are_not_known_losses(traits: dict[str, Any], source: object, lake: object) -> None:
    assert loss(source, lake, **traits) is None


def test_missing_column_is_known_only_if_its_type_is_not_sent() -> None:
    assert loss("string", None, "column", type="polygon") == catalog.NOT_SENT
    assert loss("string", None, "column", type="address", typtype="c") == catalog.NOT_SENT
    assert loss("string", None, "column") is None


@pytest.mark.parametrize("kind", ["missing", "extra", "duplicate"])
def test_missing_or_extra_row_is_not_a_known_loss(kind: Kind) -> None:
    assert loss(None, None, kind, has_default=True, key_place=0) is None


@pytest.mark.parametrize(
    ("traits", "value", "known"),
    [
        ({"type": "date"}, Decimal(2_932_897), catalog.QUARANTINED_KEY),
        ({"type": "date"}, Decimal("-Infinity"), catalog.QUARANTINED_KEY),
        ({"type": "timestamptz"}, Decimal(-62_200_000_000_000_000), catalog.QUARANTINED_KEY),
        ({"type": "date"}, date(9999, 12, 31), None),
        ({"type": "date"}, Decimal(-735_000), None),
        ({"type": "numeric"}, Decimal(2_932_897), None),
    ],
    ids=str,
)
def test_missing_row_with_a_quarantined_key_is_known(traits: dict[str, Any], value: object, known: str) -> None:
    columns = (replace(PLAIN, type="numeric", key_place=1), replace(PLAIN, key_place=0, **traits))
    found = Difference("missing", (value, Decimal(10_000_000)), None, (), None)

    assert SourceTable("public", "thing", columns).loss(found) == known


@pytest.mark.parametrize(
    ("source", "lake"),
    [("Order Date", "Order_Date"), ("order-date", "order_date"), ("2nd", "_2nd"), ("größe", "gr__e"), ("x$y", "x_y")],
)
def test_column_names_follow_avro_rules(source: str, lake: str) -> None:
    assert in_the_lake(source) == lake


def test_topic_names_follow_kafka_rules() -> None:
    assert SourceTable("Sky Survey", "Größe, 2.v-1", ()).topic("dump") == "dump.Sky_Survey.Gr__e__2.v-1"
