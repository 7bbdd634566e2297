"""Schema texts from Hypothesis and from the fuzz test are rejected with a reason, or accepted by the JVM's parser."""

import json
import random
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from support import fuzz, wire

from cdc_lake.bronze.references import Names, resolve
from cdc_lake.bronze.usable_schemas import Schemas
from cdc_lake.config import TableConfig
from cdc_lake.decode import avro
from cdc_lake.decode.framing import Side
from cdc_lake.decode.records import WriterSchema, schema_text
from cdc_lake.decode.schemas import parse

NAMES = st.sampled_from(["a", "b", "Key", "x.y", "", "1", "a b", "\ud800", "int", "pagila.public.thing.Envelope"])
LEAVES = st.sampled_from(["null", "int", "long", "string", "bytes", "Key", "x.y", "no such type"])
NUMBERS = st.sampled_from([-1, 0, 1, 38, 39, 1 << 31, 1.5, "1", None, True])
SECONDS = 1


def _types(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    field = st.fixed_dictionaries({"name": NAMES, "type": inner}, optional={"default": st.none()})
    symbols = st.lists(NAMES, max_size=3)
    decimal = {"logicalType": st.just("decimal"), "precision": NUMBERS, "scale": NUMBERS}
    return st.one_of(
        st.lists(inner, max_size=4),
        st.fixed_dictionaries({"type": st.just("record"), "name": NAMES, "fields": st.lists(field, max_size=4)}),
        st.fixed_dictionaries({"type": st.just("enum"), "name": NAMES}, optional={"symbols": symbols}),
        st.fixed_dictionaries({"type": st.just("fixed"), "name": NAMES}, optional={"size": NUMBERS, **decimal}),
        st.fixed_dictionaries({"type": st.just("bytes")}, optional=decimal),
        st.fixed_dictionaries({"type": st.just("array"), "items": inner}),
        st.fixed_dictionaries({"type": st.just("map"), "values": inner}),
        st.fixed_dictionaries({"type": inner}),
    )


TEXTS = st.recursive(LEAVES, _types, max_leaves=12).map(json.dumps)


def check(spark: SparkSession, schema: WriterSchema) -> None:
    """Use a schema for keys and for values as bronze does."""
    sides: tuple[Side, ...] = ("key", "value")
    for side in sides:
        started = time.process_time()
        found = resolve(
            ["glue:1"],
            names=Names(fuzz.TABLE.name, allowed=("*",)),
            kinds=(),
            known_kinds={},
            look_up=lambda kind, schema_id: [schema],
            samples=lambda references: {},
        )
        usable = Schemas.of(found.meanings, found.problems, side=side, settings=TableConfig())
        assert time.process_time() - started < SECONDS
        assert usable.known.keys() | usable.problems.keys() == {"glue:1"}
        if usable.known and schema.format == "avro":
            spark._jvm.org.apache.avro.Schema.Parser().parse(avro.wrapped_schema(schema.tree))  # type: ignore[union-attr]


@pytest.mark.core
@seed(42)
@settings(max_examples=300, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(TEXTS)
def test_generated_schema_is_refused_or_accepted_by_the_jvm(spark: SparkSession, text: str) -> None:
    check(spark, WriterSchema(text))


@pytest.mark.parametrize(
    "number", [pytest.param(10, marks=pytest.mark.core), pytest.param(400, marks=pytest.mark.deep)]
)
def test_corrupted_schema_is_refused_or_accepted_by_the_jvm(spark: SparkSession, number: int) -> None:
    for one in range(number):
        rng = random.Random(one)
        texts = [WriterSchema(text) for text in fuzz.hostile_texts(rng)]
        embedded = [json.dumps(fuzz.odd(rng, fuzz.ENVELOPE)) for _ in range(fuzz.HOSTILE_SCHEMAS)]
        for schema in [*texts, *(WriterSchema(schema_text("connect", schema=text)) for text in embedded)]:
            check(spark, schema)


@pytest.mark.core
@pytest.mark.parametrize(
    "name",
    [
        *(
            "shop.public.2019.Key",
            "2019.public.t.Value",
            "shop.my-table.Key",
            "a..K",
            ".K",
            "a.größe",
            "a.int",
            "a. b.K",
        ),
        *("2019", "shop.2019", "a.", "int", "a.b$", "a.b-c", "a.²"),
    ],
)
def test_names_that_the_jvm_accepts_are_accepted(spark: SparkSession, name: str) -> None:
    """Avro 1.12 checks the namespace too, so the text that decodes has another one."""
    text = json.dumps({"type": "record", "name": name, "fields": [{"name": "a", "type": "int"}]})
    parse_in_jvm = spark._jvm.org.apache.avro.Schema.Parser().parse  # type: ignore[union-attr]
    try:
        parse_in_jvm(text if "." not in name else text.replace(name, f"a.{name.rpartition('.')[2]}"))
        is_accepted = True
    except Py4JJavaError:
        is_accepted = False

    schemas = Schemas.of({"id4:1": [WriterSchema(text)]}, side="key", settings=TableConfig(), spark=spark)

    assert bool(schemas.known) == is_accepted, schemas.problems


@pytest.mark.core
def test_records_of_tables_that_begin_with_a_digit_decode(spark: SparkSession) -> None:
    """Two types whose names differ in the replaced characters only are not mixed up."""
    names = ("shop.2019.Value", "shop._2019.Value")
    inner = [{"type": "record", "name": name, "fields": [{"name": "größe", "type": "int"}]} for name in names]
    inner[1]["fields"][0]["type"] = "string"
    fields = [{"name": f"f{number}", "type": one} for number, one in enumerate(inner)]
    text = json.dumps({"type": "record", "name": "shop.2019.Envelope", "fields": fields})
    tree, body = parse(text), wire.avro(text, {"f0": {"größe": 7}, "f1": {"größe": "x"}})

    found = spark.createDataFrame([(body,)], "body binary").select(avro.decoded(F.col("body"), tree, tree).alias("v"))
    (row,) = found.select(avro.value(F.col("v")), avro.is_exact(F.col("v"))).collect()

    assert tuple(row) == (((7,), ("x",)), True)
