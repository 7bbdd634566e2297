"""Bronze and silver of hostile records, for each kind of registry and each frame in the settings. The report is one
line of JSON: failures, lost good records, and requested files outside the lakes.
"""

import json
import os
import random
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from pyspark.sql import functions as F
from support import fuzz
from support.converters import AnyIdRegistry
from support.events import Record
from support.fakes import FakeBroker
from support.setting_groups import patched

from cdc_lake.bronze.run import run_bronze
from cdc_lake.config import Config, LakeConfig, TableConfig, load_config
from cdc_lake.registries.registry import is_id
from cdc_lake.runs.context import lake_of
from cdc_lake.silver.run import run_silver
from cdc_lake.spark.session import build_session
from cdc_lake.storage.hadoop import HadoopFiles

BATCH = 1_500


class Library(AnyIdRegistry):
    """A registry that fails for texts that cannot be ids."""

    def schema(self, kind: str, schema_id: str) -> Any:
        assert is_id(kind, schema_id), (kind, schema_id)
        return super().schema(kind, schema_id)


def library(rng: random.Random, registry: str) -> Library:
    """The registry of a kind, with hostile schemas."""
    known = Library()
    known.namespaces, frames = fuzz.REGISTRIES[registry]
    texts = list(enumerate(fuzz.TEXTS.values(), 1)) + list(enumerate(fuzz.hostile_texts(rng), 10))
    for number, text in texts:
        for kind in {kind for _, kind in frames}:
            known.put(fuzz.reference(kind, number), text)
    return known


def land(
    name: str, sent: Iterable[fuzz.Sent], known: Library, config: Config, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Land and fold the records of one topic in a separate lake; the failures."""
    root = f"{config.lake.root}/{name}"
    table = TableConfig(
        **settings,
        read={"max_records_per_batch": BATCH, "max_record_bytes": 1_000_000},
        quality={"on_unusable_records": "warn"},
    )
    config = config.model_copy(update={"lake": LakeConfig(root=root), "defaults": table})
    broker, good, total = FakeBroker(), {}, 0
    for offset, one in enumerate(sent):
        at = datetime.fromtimestamp(1_700_000_000 + offset, UTC)
        broker.append(Record(one.key, one.value, fuzz.TABLE.name, 0, offset, at, one.headers))
        total += 1
        if one.good_key is not None:
            good[offset] = one.good_key
    (bronze,) = run_bronze(config, [fuzz.TABLE.name], SPARK, source=broker, registry=known).tables
    if bronze.error:
        return {"errors": [f"{name}: {bronze.error.message}"]}
    (silver,) = run_silver(config, [fuzz.TABLE.name], SPARK).tables
    landed = lake_of(config).bronze(SPARK, fuzz.TABLE.name).read()
    ok = {row["offset"] for row in landed.where(F.col("status") == "ok").select("offset").collect()}
    return {
        "errors": [f"{name}: {silver.error.message}"] if silver.error else [],
        "lost": sorted(set(good) - ok)[:20],
        "counts": bronze.rows,
        "all_there": landed.count() == total,
    }


SPARK = build_session("fuzz", 1_000_000)

if __name__ == "__main__":
    seed, number = int(os.environ["FUZZ_SEED"]), int(os.environ["FUZZ_RECORDS"])
    rng, config, asked = random.Random(seed), load_config(), set[str]()

    def watched(of_path: Callable[[HadoopFiles, str], Any]) -> Callable[[HadoopFiles, str], Any]:
        return lambda files, path: (asked.add(path), of_path(files, path))[1]

    HadoopFiles._fs = watched(HadoopFiles._fs)  # type: ignore[method-assign]
    HadoopFiles._local = watched(HadoopFiles._local)  # type: ignore[method-assign]
    only = os.environ.get("FUZZ_ONLY", "").split(",")
    found = {}
    share = number // (len(fuzz.REGISTRIES) + len(fuzz.DECLARED))
    for name in fuzz.REGISTRIES:
        known, sent = library(rng, name), list(fuzz.records(rng, share, name))
        if name in only or only == [""]:
            found[name] = land(name, sent, known, config, {})
    schemas = {}
    for side in ("key", "value"):
        file = Path(f"{side}.avsc").absolute()
        file.write_text(fuzz.TEXTS[side])
        schemas[side] = {"schemas": (str(file),)}
    for name, settings in fuzz.DECLARED.items():
        sent = list(fuzz.declared_records(rng, share, name))
        if name in only or only == [""]:
            found[name] = land(name, sent, Library(), config, patched(settings, schemas if name == "bare" else {}))
    root = f"{config.lake.root}/"
    outside = [path for path in asked if not path.startswith(root) or {"..", "."} & set(path.split("/"))]
    print(json.dumps({"topics": found, "outside": outside[:20]}))
