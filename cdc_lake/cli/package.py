"""`cdc-lake package`: what is sent to a cluster."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from cdc_lake.cli.output import Output, answer, say
from cdc_lake.packaging import PLAN, Plan, build
from cdc_lake.spark.versions import profile_name


class Architecture(StrEnum):
    """As a flag takes it."""

    x86_64 = "x86_64"
    aarch64 = "aarch64"


def package(
    profile: Annotated[
        str | None, typer.Option(help="A file of conf/jars without `.lock`. Else: the one for the installed PySpark.")
    ] = None,
    arch: Annotated[Architecture, typer.Option(help="The nodes' processors.")] = Architecture.x86_64,
    s3a: Annotated[bool, typer.Option("--s3a", help="With the jars of s3a://, for clusters that have none.")] = False,
    into: Annotated[Path, typer.Option(help="The folder; the package goes below it, by its profile.")] = Path("dist"),
    upload_to: Annotated[
        str | None, typer.Option(metavar="URL", help="Print the commands that bring it there, as s3://bucket/prefix.")
    ] = None,
) -> None:
    """Make what a cluster needs: jobs, Python packages, jars, and a plan of what goes where."""
    name = profile or profile_name()
    folder = into.resolve() / name
    plan = build(folder, name, arch=arch.value, s3a=s3a, progress=lambda text: say(f"{name}: {text}"))
    _print_package(folder, plan)
    if upload_to:
        to = f"{upload_to.rstrip('/')}/{plan.version}"
        for file in plan.needed_on("emr"):
            answer(f"aws s3 cp {folder / file.path} {to}/{file.path}")


def _print_package(folder: Path, plan: Plan) -> None:
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("file", overflow="fold")
    table.add_column("bytes", justify="right")
    table.add_column("sha256")
    table.add_column("needed on")
    for file in plan.files:
        table.add_row(file.path, f"{file.size:,}", file.sha256[:12], ", ".join(file.on))
    Output().print(table)
    total = sum(file.size for file in plan.files)
    say(f"cdc_lake {plan.version} for Spark {plan.spark} and Python {plan.python} on {plan.arch}: {total:,} bytes")
    say(f"in {folder}; {PLAN} says what goes where (docs/how-to/clusters.md)")
