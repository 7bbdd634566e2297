"""`cdc-lake jars`: what Spark and the embedded servers run on."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from cdc_lake.cli.output import say
from cdc_lake.cli.run import configure_logging
from cdc_lake.errors import InstallationError
from cdc_lake.spark.jars import (
    EMBEDDED_PROFILE,
    Jar,
    cache_folder,
    fetch,
    lock_file,
    read_lock,
    reads_s3a,
    relock,
    verify,
    write_spark_defaults,
)
from cdc_lake.spark.versions import PROFILES, profile_name

app = typer.Typer(help="Fetch and check the jars of Spark and of the embedded servers.", no_args_is_help=True)

Profile = Annotated[
    str | None,
    typer.Option(help="A file of conf/jars without `.lock`. Else: the one for the installed PySpark, and embedded."),
]


@app.command("fetch")
def fetch_command(
    profile: Profile = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing when nothing had to be fetched.")] = False,
    s3a: Annotated[
        bool, typer.Option("--s3a", help="Those of s3a:// too, for a lake on S3; they stay known from then on.")
    ] = False,
    conf: Annotated[
        Path | None, typer.Option(help="The folder of spark-defaults.conf, for SPARK_CONF_DIR. Else: PySpark's own.")
    ] = None,
) -> None:
    """Fetch what is missing or damaged, and make Spark's jars known to spark-submit."""
    cache = cache_folder()
    for name, jars in _selected_profiles(profile):
        if name in PROFILES and (s3a or reads_s3a(conf)):
            jars += read_lock(lock_file(PROFILES[name].s3a))
        fetched = fetch(jars, cache, progress=lambda text, name=name: say(f"{name}: {text}"))  # type: ignore[misc]
        if fetched or not quiet:
            say(f"{name}: {len(jars)} jars are there, {fetched} of them new")
        if name in PROFILES:
            from cdc_lake.spark.session import SPARK_DEFAULTS  # imports pyspark, which the other commands do without

            write_spark_defaults(jars, cache, SPARK_DEFAULTS, conf=conf, java_module=PROFILES[name].java_module)


@app.command("archive")
def archive_command() -> None:
    """Archive the classes that runs load, to start them faster (190 MB).

    Run it again after an update of Java or of the jars.
    """
    from cdc_lake.cli.training import train
    from cdc_lake.spark.class_archive import recorded  # loads pyspark, as above

    configure_logging()
    with tempfile.TemporaryDirectory() as folder, recorded():
        train(Path(folder))


@app.command("verify")
def verify_command(profile: Profile = None) -> None:
    """Check that every jar is there and is the one that was tested."""
    cache = cache_folder()
    problems = []
    for name, jars in _selected_profiles(profile):
        found = verify(jars, cache)
        say(f"{name}: {len(jars) - len(found)} of {len(jars)} jars are right")
        problems += found
    if problems:
        raise InstallationError(f"jars in {cache}", ", ".join(problems), "run `cdc-lake jars fetch`")


@app.command("list")
def list_command(profile: Profile = None) -> None:
    """List the jars and who needs them."""
    for name, jars in _selected_profiles(profile):
        say(name)
        for jar in jars:
            say(f"  {jar.coordinates}  {','.join(jar.parts)}")


@app.command("lock")
def lock_command(profile: Annotated[str, typer.Argument(help="A file of conf/jars without `.lock`.")]) -> None:
    """Fetch the jars of a lock file anew and write their hashes into it (for maintainers)."""
    relock(lock_file(profile))
    say(f"{profile}: {len(read_lock(lock_file(profile)))} hashes written; look at the difference before you commit it")


def _selected_profiles(profile: str | None) -> Iterator[tuple[str, tuple[Jar, ...]]]:
    for name in (profile,) if profile else (profile_name(), EMBEDDED_PROFILE):
        yield name, read_lock(lock_file(name))
