"""What cannot reach Kafka is told from what somebody is to blame for, by the catalogue alone."""

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from cdc_lake.embedded import catalogue
from cdc_lake.embedded.catalogue import Column, Table, in_the_lake
from cdc_lake.embedded.comparer import Difference, Kind

PLAIN = Column(
    *("a column", "text", "b"),
    is_array=False,
    is_nullable=True,
    has_default=False,
    is_generated=False,
    is_key=False,
    is_unique=False,
    is_reference=False,
)


def loss(source: object, lake: object, found: Kind = "cell", **traits: Any) -> str | None:
    """The loss that explains a difference in a column of these traits."""
    table = Table("public", "thing", (replace(PLAIN, **traits),))
    return table.loss(Difference(found, (1,), "a column", source, lake))


@pytest.mark.parametrize(
    ("traits", "source", "lake", "known"),
    [
        ({"has_default": True}, None, "the default", catalogue.NULL_AS_DEFAULT),
        ({"type": "numeric"}, Decimal("NaN"), None, catalogue.NOT_FINITE),
        ({"type": "numeric", "has_default": True}, Decimal("-Infinity"), Decimal(1), catalogue.NOT_FINITE),
        ({"type": "numeric", "is_array": True}, (Decimal(1), Decimal("NaN")), None, catalogue.NOT_FINITE),
        ({"type": "timestamptz"}, Decimal("Infinity"), None, catalogue.NOT_FINITE),
        ({"type": "date"}, Decimal(-735_000), None, catalogue.OUT_OF_CALENDAR),
        ({"is_generated": True}, "computed", None, catalogue.GENERATED),
        ({"type": "name"}, "pg_class", None, catalogue.NOT_SENT),
        ({"type": "Mood", "kind": "e", "is_array": True}, ("sad", None), None, catalogue.NULL_IN_ARRAY),
        ({"type": "float8", "is_array": True}, (1.5,) * 1000, None, catalogue.LARGE_ARRAY),
    ],
    ids=str,
)
def test_a_known_loss_is_named(traits: dict[str, Any], source: object, lake: object, known: str) -> None:
    assert loss(source, lake, **traits) == known


@pytest.mark.parametrize(
    ("traits", "source", "lake"),
    [
        ({}, None, "text"),
        ({"has_default": True}, "text", "the default"),
        ({"has_default": True, "is_nullable": False}, None, "the default"),
        ({"type": "numeric"}, Decimal("NaN"), Decimal(0)),
        ({"type": "numeric"}, Decimal(1), None),
        ({"type": "timestamptz"}, datetime(2024, 2, 29, tzinfo=UTC), None),
        ({"is_generated": True}, "computed", "another"),
        ({"type": "Mood", "kind": "e", "is_array": True}, ("sad",), ("happy",)),
        ({"type": "text", "is_array": True}, ("a", None), None),
        ({"type": "float8", "is_array": True}, (), None),
        ({"type": "float8", "is_array": True}, (1.5,), (2.5,)),
    ],
    ids=str,
)
def test_the_catalogue_has_no_excuse_for_other_differences(
    traits: dict[str, Any], source: object, lake: object
) -> None:
    assert loss(source, lake, **traits) is None


def test_a_column_may_be_missing_only_if_its_type_is_not_sent() -> None:
    assert loss("string", None, "column", type="polygon") == catalogue.NOT_SENT
    assert loss("string", None, "column", type="address", kind="c") == catalogue.NOT_SENT
    assert loss("string", None, "column") is None


@pytest.mark.parametrize("kind", ["missing", "extra", "duplicate"])
def test_no_row_may_be_missing_or_too_many(kind: Kind) -> None:
    assert loss(None, None, kind, has_default=True) is None


@pytest.mark.parametrize(
    ("source", "lake"),
    [("Order Date", "Order_Date"), ("order-date", "order_date"), ("2nd", "_2nd"), ("größe", "gr__e"), ("x$y", "x_y")],
)
def test_a_column_is_named_as_avro_allows(source: str, lake: str) -> None:
    assert in_the_lake(source) == lake


def test_a_topic_is_named_as_kafka_allows() -> None:
    assert Table("Sky Survey", "Größe, 2.v-1", ()).topic("dump") == "dump.Sky_Survey.Gr__e__2.v-1"
