"""Bronze and silver of a lake on a full disk, and again after there is space; needs permission to mount a disk."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from bronze_of_fakes import servers
from deltalake import DeltaTable
from support.events import TABLE

from cdc_lake.bronze import run as bronze
from cdc_lake.cli.app import execute
from cdc_lake.spark.session import build_session

LAYERS = ("bronze", "silver")


def leave(disk: Path, free_bytes: int) -> Path:
    """Fill a disk to this many bytes; the file that fills it."""
    found, filler = os.statvfs(disk), disk / "filler"
    filler.write_bytes(bytes(found.f_bavail * found.f_frsize - free_bytes))
    return filler


def run(layer: str) -> object:
    """Run a layer like its command; the exit code."""
    try:
        execute("run", layer, "--table", TABLE, "--json")
    except SystemExit as ended:
        return ended.code
    return None


if __name__ == "__main__":
    disk, sizes = Path(sys.argv[1]), map(int, sys.argv[2:])
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], check=True)
    os.environ["CDC_LAKE__LAKE__ROOT"] = f"{disk}/lake"
    (disk / "lake").mkdir()
    broker, registry = servers()
    bronze.BronzeLayer.of = partial(bronze.BronzeLayer.of, source=broker, registry=registry)
    spark = build_session("cdc_lake on a full disk", is_short=True)
    codes: dict[str, list[object]] = {layer: [] for layer in LAYERS}
    free_bytes = list(sizes)
    for layer in LAYERS:
        for free in free_bytes:
            filler = leave(disk, free)
            codes[layer].append(run(layer))
            filler.unlink()
        codes[layer].append(run(layer))
    folder = TABLE.replace(".", "/")
    kept = [DeltaTable(f"{disk}/lake/{layer}/{folder}").to_pyarrow_table().to_pylist() for layer in LAYERS]
    hudi = spark.read.format("hudi").load(f"{disk}/lake/silver_hudi_cow/{folder}").select("id", "name").collect()
    drafts = [path for name in ("_runs", "_leases", "_schemas") for path in (disk / "lake" / name).rglob("*.tmp")]
    print(
        json.dumps(
            {
                "codes": codes,
                "offsets": sorted(row["offset"] for row in kept[0]),
                "delta": sorted((row["id"], row["name"]) for row in kept[1]),
                "hudi": sorted((row["id"], row["name"]) for row in hudi),
                "reports": len(list((disk / "lake" / "_runs").glob("*.json"))),
                "drafts": list(map(str, drafts)),
            }
        )
    )
