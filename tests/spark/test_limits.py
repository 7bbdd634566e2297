"""Records that are too large or too many for one batch: each is quarantined, and its neighbors land."""

from pathlib import Path

import wire
from pyspark.sql import SparkSession
from sent import ENVELOPE, KEY_TEXT, TABLE, VALUE_TEXT, Lake, Shelf, event, row

from cdc_lake.config import Config, LakeConfig
from cdc_lake.layers.replay import replay_quarantined

LIMIT = 1000


def of(key: int, name: str = "") -> bytes:
    return wire.avro(VALUE_TEXT, wire.filled(ENVELOPE, event("c", row(key, name), key)))


def test_large_record_is_quarantined_without_its_bytes(spark: SparkSession, tmp_path: Path) -> None:
    shelf = Shelf()
    shelf.put("contentId:1", KEY_TEXT)
    shelf.put("contentId:2", VALUE_TEXT)
    lake = Lake(spark, tmp_path, shelf, max_record_bytes=LIMIT)
    lake.send_numbered(1, of(1), 2)
    lake.send_numbered(2, of(2, "x" * LIMIT), 2)

    done = lake.land()

    assert done.rows == {"read": 2, "ok": 1, "quarantined": 1, "control": 0}
    assert done.read_bytes < LIMIT
    bad = lake.bronze()[1]
    assert bad["error"]["code"] == "too_large"
    assert bad["error"]["message"].endswith(f" bytes are more than max_record_bytes: {LIMIT}, and are not kept")
    assert (bad["raw_value"], bad["raw_key"][-1], bad["op"], bad["tombstone_of"]) == (None, 4, None, None)

    lake.send_numbered(3, of(3), 2)
    assert lake.land().rows["ok"] == 1  # the large record is not taken for another one
    config = Config(lake=LakeConfig(root=str(tmp_path)))
    (again,) = replay_quarantined(config, [TABLE.name], spark, registry=shelf).tables
    assert again.rows == {"replayed": 0, "still_quarantined": 1}  # and never for a delete
    assert "frame: too_large: value: " in again.warnings[0]
