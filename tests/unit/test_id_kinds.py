"""Which kind of id the numbers in a frame are."""

import json
from collections.abc import Collection, Mapping, Sequence

import pytest

from cdc_lake.bronze.references import Names, resolve
from cdc_lake.decode.records import WriterSchema

pytestmark = pytest.mark.core

TABLE = "pagila.public.thing"


def schema(kind: str) -> WriterSchema:
    fields = [{"name": "id", "type": kind}]
    return WriterSchema(json.dumps({"type": "record", "name": f"{TABLE}.Key", "fields": fields}))


@pytest.mark.parametrize(
    ("contents", "versions", "sampled"),
    [
        ({"1": schema("long"), "2": schema("string")}, {"1": schema("long"), "2": schema("string")}, []),
        ({"1": schema("long"), "2": schema("string")}, {"1": schema("long"), "2": schema("int")}, ["id4:00000002"]),
        ({"1": schema("long")}, {"2": schema("long")}, ["id4:00000001", "id4:00000002"]),
    ],
    ids=["same", "one-differs", "one-is-missing"],
)
def test_only_ids_whose_kinds_differ_are_sampled(
    contents: Mapping[str, WriterSchema], versions: Mapping[str, WriterSchema], sampled: Sequence[str]
) -> None:
    asked: list[str] = []
    by_kind = {"contentId": contents, "globalId": versions}

    def samples(references: Collection[str]) -> Mapping[str, Sequence[bytes]]:
        asked.extend(references)
        return {}

    def look_up(kind: str, schema_id: str) -> Sequence[WriterSchema]:
        return [found] if (found := by_kind[kind].get(schema_id)) else []

    resolve(
        ["id4:00000001", "id4:00000002"],
        names=Names(TABLE),
        kinds=list(by_kind),
        known_kinds={},
        look_up=look_up,
        samples=samples,
    )

    assert asked == sampled


def test_damaged_sample_leaves_the_reference_to_the_voted_kind() -> None:
    foreign = WriterSchema(schema("long").text.replace(TABLE, "pagila.public.other"))
    own = {"1": schema("long"), "2": schema("int")}
    by_kind = {"contentId": dict.fromkeys(own, foreign), "globalId": own}

    found = resolve(
        ["id4:00000001", "id4:00000002"],
        names=Names(TABLE),
        kinds=list(by_kind),
        known_kinds={},
        look_up=lambda kind, schema_id: [by_kind[kind][schema_id]],
        samples=lambda _: {"id4:00000001": [b"\x02"], "id4:00000002": [b"\x02", b"\xff"]},
    )

    assert found.kinds == {"id4": "globalId"}
    assert (found.meanings, found.problems) == ({"id4:00000001": (own["1"],), "id4:00000002": (own["2"],)}, {})
