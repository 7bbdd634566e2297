"""Case T6: a connector that has no placeholder for a column's type sends null for values that it did not send."""

import json
from functools import partial

import pytest
from pyspark.sql import SparkSession
from support.columns import Case, evaluated
from support.events import PLACEHOLDER, decimal

from cdc_lake.decode.schemas import parse
from cdc_lake.silver.unavailable import unavailable

pytestmark = pytest.mark.core

NUMBERS = {"type": "array", "items": decimal(4, 2)}
FIELDS = {name: parse(json.dumps(kind)) for name, kind in {"n": "int", "body": "string", "numbers": NUMBERS}.items()}
ROW = "struct<n: int, body: string, numbers: array<decimal(4,2)>>"
ROWS = [(1, "x", None), (None, None, None), (2, PLACEHOLDER, None)]

EXPECTED: dict[str, tuple[tuple[str, ...], list[list[str]]]] = {
    "a null is a value unless it is said to mean not sent": ((), [[], [], ["body"]]),
    "a null means not sent in the listed columns of any type": (
        ("n", "numbers"),
        [["numbers"], ["n", "numbers"], ["body", "numbers"]],
    ),
    "a column where null means not sent still knows its placeholder": (("body",), [[], ["body"], ["body"]]),
    "a column that the schema lacks was not sent": (("gone",), [["gone"], ["gone"], ["body", "gone"]]),
}
"""By case: the columns where null means not sent, and for each row those that were not sent."""


@pytest.fixture(scope="module")
def not_sent(spark: SparkSession) -> dict[str, list[list[str]]]:
    rules = {
        name: partial(unavailable, FIELDS, placeholder=PLACEHOLDER, null_means_unchanged=keep)
        for name, (keep, _) in EXPECTED.items()
    }
    return evaluated(spark, {name: Case(ROW, rule, ROWS) for name, rule in rules.items()})


@pytest.mark.parametrize("case", EXPECTED)
def test_unsent_columns_are_listed(not_sent: dict[str, list[list[str]]], case: str) -> None:
    _, expected = EXPECTED[case]

    assert not_sent[case] == expected
