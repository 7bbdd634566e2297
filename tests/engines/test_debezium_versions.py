"""One topic through all generations of Debezium and of its unwrap transform, upgrade by upgrade."""

from pathlib import Path

from pyspark.sql import SparkSession
from support import wire
from support.converters import KEY_TEXT, TABLE, AnyIdRegistry, Lake, check_life, life

GENERATIONS: tuple[wire.Version, ...] = (
    *((1, 0), (1, 4), (1, 5), (1, 6), (1, 9)),
    *((2, 0), (2, 4), (2, 5), (2, 6), (2, 7)),
    *((3, 0), (3, 1), (3, 5), (3, 6)),
)
ADDED = (
    (),
    ("op",),
    ("op", "table", "lsn", "source.ts_ms", "source.snapshot", "source.sequence", "source.txId"),
    ("ts_ms", "op", "db", "schema", "source.ts_us", "transaction.id"),
)
"""The fields that the transform adds: none, and up to more than needed."""


def test_envelopes_of_all_debezium_versions_decode_equally(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path, AnyIdRegistry())
    lake.registry.put("contentId:1", KEY_TEXT)
    for number, generation in enumerate(GENERATIONS):
        schema = wire.envelope(TABLE, generation)
        lake.registry.put(f"contentId:{2 + number}", wire.json_text(wire.avro_schema(schema)).decode())
        for key, change in life(10 * number):
            avro = change and wire.avro_record(schema, wire.filled(schema, change))
            lake.send_numbered(key, avro, 2 + number)

    assert (lake.land().error, {r["status"] for r in lake.bronze()}) == (None, {"ok"})
    rows = lake.fold()
    for number in range(len(GENERATIONS)):
        check_life(rows, 10 * number)


def test_flattened_rows_of_all_debezium_versions_decode_equally(spark: SparkSession, tmp_path: Path) -> None:
    """Without `__op`, a row is an update, and a delete is recognized by its flag or its missing value."""
    lake = Lake(spark, tmp_path, AnyIdRegistry())
    lake.registry.put("contentId:1", KEY_TEXT)
    number = 1
    for generation in GENERATIONS:
        for added in ADDED:
            unwrap = wire.Unwrap(
                added, deletes="rewrite" if number % 2 else "tombstone", tombstones=True, debezium=generation
            )
            whole = wire.envelope(TABLE, generation)
            schema, number = unwrap.schema(whole), number + 1
            lake.registry.put(f"contentId:{number}", wire.json_text(wire.avro_schema(schema)).decode())
            for key, change in life(10 * number):
                for value in unwrap.values(whole, change and wire.filled(whole, change)):
                    avro = value and wire.avro_record(schema, wire.filled(schema, value))
                    lake.send_numbered(key, avro, number)

    assert (lake.land().error, {r["status"] for r in lake.bronze()}) == (None, {"ok"})
    rows = lake.fold()
    found = {key: (row["__deleted"], row["name"], str(row["rate"])) for key, row in rows.items()}
    for first in range(20, 10 * number + 1, 10):
        assert [found[first + step] for step in range(5)] == [
            (False, "r0", "4.99"),
            (False, "c0", "4.99"),
            (False, "u1", "4.99"),
            (True, "c0", "4.99"),
            (True, "c0", "4.99"),
        ]
