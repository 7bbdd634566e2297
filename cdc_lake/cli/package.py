"""`cdc-lake package`: build the files that a cluster needs."""

from pathlib import Path
from typing import Annotated

import typer

from cdc_lake.cli.output import Output, answer, print_rows, say
from cdc_lake.packaging import PLAN, Arch, UploadPlan, build
from cdc_lake.spark.versions import profile_name


def package(
    profile: Annotated[
        str | None, typer.Option(help="Use conf/jars/<PROFILE>.lock (default: that of the installed PySpark).")
    ] = None,
    arch: Annotated[Arch, typer.Option(help="Set the processor type of the nodes.")] = "x86_64",
    s3a: Annotated[bool, typer.Option("--s3a", help="Include the s3a:// jars, for clusters without them.")] = False,
    into: Annotated[Path, typer.Option(help="Write the package to <INTO>/<profile>.")] = Path("dist"),
    upload_to: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Print the commands that upload it, for example to s3://bucket/prefix."),
    ] = None,
) -> None:
    """Package jobs, Python packages and jars for a cluster."""
    name = profile or profile_name()
    folder = into.resolve() / name
    plan = build(folder, name, arch=arch, s3a=s3a, progress=lambda text: say(f"{name}: {text}"))
    _print_package(folder, plan)
    if upload_to:
        to = f"{upload_to.rstrip('/')}/{plan.version}"
        for file in plan.needed_on("emr"):
            answer(f"aws s3 cp {folder / file.path} {to}/{file.path}")


def _print_package(folder: Path, plan: UploadPlan) -> None:
    rows = ((file.path, f"{file.size:,}", file.sha256[:12], ", ".join(file.on)) for file in plan.files)
    print_rows(Output(), ("file", ">bytes", "sha256", "needed on"), rows)
    total = sum(file.size for file in plan.files)
    say(f"cdc_lake {plan.version} for Spark {plan.spark} and Python {plan.python} on {plan.arch}: {total:,} bytes")
    say(f"in {folder}; see {PLAN} for where each file goes (docs/how-to/clusters.md)")
