"""Silver's columns follow the source's: compatible types, names of steps, and what a policy allows."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lake.decode.types import wider
from cdc_lake.errors import ConfigError, SchemaChangeError, UnsupportedError
from cdc_lake.silver.evolution import (
    ColumnMapping,
    Layout,
    LayoutChange,
    SentColumns,
    check_steps,
    evolve_layout,
    variant_name,
)

pytestmark = pytest.mark.core

TABLE = "pagila.public.thing"
KEY = {"id": "int"}
KINDS = ("smallint", "int", "bigint", "float", "double", "string", "date", "decimal(4,2)", "decimal(6,3)", "binary")


def follow(*batches: list[dict[str, str]], **more: Any) -> LayoutChange:
    """The result of the last of several batches of value schemas, each applied to the one before."""
    found = None
    for schemas in batches:
        found = evolve_layout(
            TABLE,
            SentColumns([KEY], [KEY | one for one in schemas], KEY | schemas[-1]),
            stored=found.layout if found else None,
            retired=found.retired if found else (),
            **more,
        )
    assert found is not None
    return found


def words(*batches: list[dict[str, str]], **more: Any) -> list[str]:
    return [step.words for step in follow(*batches, **more).steps]


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("int", "int", "int"),
        ("smallint", "bigint", "bigint"),
        ("int", "smallint", "int"),
        ("float", "double", "double"),
        ("decimal(4,2)", "decimal(6,3)", "decimal(6,3)"),
        ("decimal(10,0)", "decimal(6,3)", "decimal(13,3)"),
        ("decimal(38,0)", "decimal(38,10)", None),
        ("int", "double", None),
        ("int", "decimal(10,0)", None),
        ("int", "string", None),
        ("date", "timestamp", None),
    ],
)
def test_wider_type_fits_every_value_of_both(one: str, other: str, both: str | None) -> None:
    assert wider(one, other) == wider(other, one) == both


def test_every_step_describes_its_change() -> None:
    before = {"n": "int", "amount": "decimal(4,2)", "text": "string", "old": "date"}
    after = {"n": "bigint", "amount": "decimal(6,3)", "text": "int", "new": "boolean"}

    found = follow([before], [after])

    assert [(step.words, step.ddl("t")) for step in found.steps] == [
        ("`n` int becomes bigint", "ALTER TABLE t ALTER COLUMN `n` TYPE bigint"),
        (
            "`amount` decimal(4,2) becomes decimal(6,3)",
            "ALTER TABLE t ALTER COLUMN `amount` TYPE decimal(6,3)",
        ),
        (
            "`text` changed from string to int: such values go to `text__int`",
            "ALTER TABLE t ADD COLUMN `text__int` int",
        ),
        ("`new` boolean is new", "ALTER TABLE t ADD COLUMN `new` boolean"),
        ("`old` is no longer sent: the column stays, with null in new rows", None),
    ]
    assert words([before], [after], [after]) == []
    assert words([before], [after], [before]) == [
        "`new` is no longer sent: the column stays, with null in new rows",
        "`old` is sent again",
    ]


@given(
    st.lists(st.dictionaries(st.sampled_from("abc"), st.sampled_from(KINDS), max_size=3), min_size=1, max_size=6),
    st.data(),
)
def test_columns_are_the_same_for_any_batching_of_schemas(schemas: list[dict[str, str]], data: st.DataObject) -> None:
    whole = follow(schemas).layout
    cuts = sorted(data.draw(st.sets(st.integers(1, len(schemas) - 1))) if len(schemas) > 1 else ())
    batches = [schemas[start:end] for start, end in zip([0, *cuts], [*cuts, len(schemas)], strict=True)]

    assert follow(*batches).layout == whole
    again = evolve_layout(TABLE, SentColumns([KEY], [KEY | one for one in reversed(schemas)]), known=whole).layout
    assert (dict(sorted(again.columns.items())), again.variants) == (
        dict(sorted(whole.columns.items())),
        whole.variants,
    )
    for schema in schemas:
        taken = [whole.column_for(name, kind) for name, kind in schema.items()]
        assert None not in taken
        assert len(set(taken)) == len(taken)


def test_known_names_never_narrow_a_column() -> None:
    known = follow([{"a": "decimal(10,0)"}]).layout
    schemas = [{"a": "decimal(30,0)"}, {"a": "decimal(20,15)"}]

    found = evolve_layout(TABLE, SentColumns([KEY], [KEY | one for one in schemas]), known=known).layout

    assert found.columns == {"id": "int", "a": "decimal(30,0)", "a__decimal_20_15": "decimal(20,15)"}


def test_existing_column_name_is_not_reused() -> None:
    assert variant_name("n", "decimal(4,2)", ()) == "n__decimal_4_2"
    assert follow([{"n": "string", "n__int": "date"}, {"n": "int", "n__int": "date"}]).layout.variants == {
        "n__int_": "n"
    }
    found = follow([{"n": "string"}], [{"n": "int"}], [{"n": "int", "n__int": "date"}])
    assert found.layout.columns == {
        "id": "int",
        "n": "string",
        "n__int": "int",
        "n__int__date": "date",
    }
    assert (found.layout.column_for("n", "int"), found.layout.column_for("n__int", "date")) == (
        "n__int",
        "n__int__date",
    )


def test_name_differing_only_in_case_gets_a_variant_column() -> None:
    found = follow([{"Order_Date": "date"}], [{"Order_Date": "date", "order_date": "string"}])

    assert found.layout.variants == {"order_date__string": "order_date"}
    assert [step.words for step in found.steps] == ["`order_date__string` string is new"]


def test_columns_are_excluded_renamed_and_cast_by_settings() -> None:
    column_mapping = ColumnMapping(excluded=["secret"], renamed={"full_name": "name"}, cast={"code": "string"})
    schemas = [{"name": "string", "secret": "string", "code": "int"}, {"full_name": "string", "code": "string"}]

    found = follow(schemas[:1], schemas[1:], column_mapping=column_mapping)

    assert found.layout.columns == {"id": "int", "name": "string", "code": "string"}
    assert found.steps == []
    assert found.layout.column_for("full_name", "string") == found.layout.column_for("name", "string") == "name"
    assert found.layout.column_for("code", "int") == "code"
    assert found.layout.column_for("secret", "string") is None
    with pytest.raises(ConfigError, match=r"thing\.name: `schema.rename` maps `full_name` and another column to it"):
        follow([{"name": "string", "full_name": "string"}], column_mapping=column_mapping)
    with pytest.raises(ConfigError, match=r"thing\.id: it is a column of the primary key"):
        follow([{}], column_mapping=ColumnMapping(excluded=["id"]))


@pytest.mark.parametrize(("policy", "allowed"), [("evolve", 5), ("add_only", 3), ("freeze", 0)])
def test_policy_error_lists_every_refused_step(policy: Any, allowed: int) -> None:
    before = {"n": "int", "text": "string", "old": "date", "new": "date"}
    first = follow([before], [{key: kind for key, kind in before.items() if key != "new"}])
    after = {"n": "bigint", "text": "int", "new": "date", "more": "date"}
    steps = evolve_layout(TABLE, SentColumns([KEY], [after], after), stored=first.layout, retired=first.retired).steps
    refused = [step.words for step in steps if step.kind in ("widen", "variant") or policy == "freeze"]
    assert len(steps) == 5

    if allowed == len(steps):
        check_steps(TABLE, steps, policy)
        return
    with pytest.raises(SchemaChangeError) as caught:
        check_steps(TABLE, steps, policy)
    assert caught.value.exit_code == 2
    assert f"`schema.evolution: {policy}` does not allow these changes: {'; '.join(refused)};" in str(caught.value)


def test_map_in_primary_key_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"thing\.tags: a column of the primary key is a map"):
        evolve_layout(TABLE, SentColumns([{"id": "int", "tags": "map<string,string>"}], []))


def test_primary_key_columns_can_only_widen() -> None:
    stored = Layout({"id": "int", "day": "date"}, {"id": "int", "day": "date", "n": "int"})

    found = evolve_layout(TABLE, SentColumns([{"day": "date", "id": "bigint"}], []), stored=stored)

    assert found.layout.keys == {"day": "date", "id": "bigint"}
    assert [step.words for step in found.steps] == ["`id` int becomes bigint"]
    for other in ({"id": "int"}, {"id": "string", "day": "date"}, {"id": "int", "day": "date", "n": "int"}):
        with pytest.raises(UnsupportedError, match="its primary key was day date, id int and now is"):
            evolve_layout(TABLE, SentColumns([other], []), stored=stored)
