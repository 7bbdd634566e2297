"""Which key a topic has if each record defines its own."""

from collections.abc import Collection, Mapping
from typing import Any

import pytest

from cdc_lake.bronze.schema_resolution import MIN_RECORDS, primary_key

pytestmark = pytest.mark.core

ID, REGION, TEXT = {"id": "int"}, {"id": "int", "region": "string"}, {"id": "string"}
CASES: Mapping[str, tuple[Any, ...]] = {
    "the first batch goes by most of its records": ({}, {}, {"a": (REGION, 2), "b": (ID, 3)}, ID, {"a"}),
    "one record does not change the key": (ID, {}, {"a": (REGION, 1)}, ID, {"a"}),
    "nor does its type": (ID, {}, {"a": (TEXT, 1), "b": (ID, 5)}, ID, {"a"}),
    "few records do not": (ID, {}, {"a": (REGION, MIN_RECORDS - 1)}, ID, {"a"}),
    "several references of one key count together": (
        *(ID, {}),
        {"a": (REGION, MIN_RECORDS - 1), "b": (REGION, 1)},
        *(REGION, set()),
    ),
    "not while as many have the key before": (
        *(ID, {}),
        {"a": (REGION, MIN_RECORDS), "b": (ID, MIN_RECORDS)},
        *(ID, {"a"}),
    ),
    "records of the key before land in the batch of a change": (
        *(ID, {}),
        {"a": (REGION, MIN_RECORDS), "b": (ID, 1), "c": (TEXT, 1)},
        *(REGION, {"c"}),
    ),
    "a wider type is the same key": (ID, {}, {"a": ({"id": "bigint"}, 1)}, {"id": "bigint"}, set()),
    "a registry's key counts at once": (ID, {"r": (REGION, 1)}, {"a": (ID, 1), "b": (TEXT, 1)}, REGION, {"b"}),
    "records with a registry's key are of the key before": (
        *(ID, {"r": (ID, MIN_RECORDS)}),
        {"a": (REGION, MIN_RECORDS)},
        *(ID, {"a"}),
    ),
}


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
def test_few_json_records_do_not_change_the_primary_key(case: tuple[Any, ...]) -> None:
    known, given, said, expected, refused = case
    numbers = {reference: number for reference, (_, number) in (given | said).items()}

    found = primary_key(known, _columns(given), _columns(said), lambda asked: {one: numbers[one] for one in asked})

    assert found == (expected, refused)


def test_records_named_one_by_one_change_the_primary_key() -> None:
    found = primary_key(ID, {}, {"a": REGION}, lambda _: {"a": 1}, takes_any=True)

    assert found == (REGION, set())


def test_records_are_counted_only_if_some_have_another_key() -> None:
    def count(asked: Collection[str]) -> Mapping[str, int]:
        raise AssertionError(asked)

    assert primary_key(ID, {"r": ID}, {"a": {"id": "bigint"}}, count) == ({"id": "bigint"}, set())


def _columns(sent: Mapping[str, tuple[Mapping[str, str], int]]) -> dict[str, Mapping[str, str]]:
    return {reference: columns for reference, (columns, _) in sent.items()}
