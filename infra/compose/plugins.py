"""python infra/compose/plugins.py: copy Connect's plugins from the jar cache to the folder that Compose mounts."""

import shutil
import sys
from pathlib import Path

from cdc_lake.spark.jars import EMBEDDED_PROFILE, cache_folder, lock_file, read_lock, require, unpack

FOLDER = Path(__file__).parent / "plugins"


def write_plugins(folder: Path) -> None:
    """Write Debezium and Apicurio's converter, in the versions of `conf/jars/embedded.lock`, to a folder each.

    Args:
        folder: emptied first.

    Raises:
        InstallationError: a jar is missing or damaged: run `cdc-lake jars fetch`.
    """
    cache, jars = cache_folder(), read_lock(lock_file(EMBEDDED_PROFILE))
    require(jars, cache)
    shutil.rmtree(folder, ignore_errors=True)
    (converter := folder / "apicurio-converter").mkdir(parents=True)
    for jar in jars:
        if "debezium" in jar.parts:
            shutil.copytree(unpack(jar, cache), folder / "debezium")
        elif "apicurio-converter" in jar.parts:
            shutil.copy2(jar.path(cache), converter)


if __name__ == "__main__":
    write_plugins(FOLDER)
    print(FOLDER, file=sys.stderr)
