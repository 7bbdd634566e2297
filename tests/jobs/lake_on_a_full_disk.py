"""Bronze and silver of a lake whose disk is full, and then has space again. To be run where it may mount its disk."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from bronze_of_fakes import servers
from events import TABLE

from cdc_lake.cli.app import execute
from cdc_lake.layers import bronze
from cdc_lake.session import build_session

DISK = Path(sys.argv[1])
FILLER = DISK / "filler"


def leave(free_bytes: int) -> None:
    """Fill the disk up to so many bytes."""
    disk = os.statvfs(DISK)
    FILLER.write_bytes(b"0" * (disk.f_bavail * disk.f_frsize - free_bytes))


def run(layer: str) -> int:
    """Run a layer as its command does."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        execute("run", layer, "--table", TABLE, "--json")
    except SystemExit as ended:
        return int(str(ended.code))
    raise AssertionError("a command ends")


if __name__ == "__main__":
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", DISK], check=True)
    broker, registry = servers()
    bronze.run_bronze = partial(bronze.run_bronze, source=broker, registry=registry)
    build_session("cdc_lake on a full disk", is_short=True)
    for layer in ("bronze", "silver"):
        codes = []
        for free_bytes in map(int, sys.argv[2:]):
            leave(free_bytes)
            codes.append(run(layer))
            FILLER.unlink()
        codes.append(run(layer))
        left = [str(path.relative_to(DISK)) for path in (DISK / "lake").rglob("*.tmp") if "_delta_log" not in path.parts]
        print(json.dumps({"layer": layer, "codes": codes, "left": left}), flush=True)
