"""`cdc-lake package` and `cdc-lake emr`: build the files that a cluster needs, and submit jobs to Amazon EMR."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
import typer.main

from cdc_lake.cli import run
from cdc_lake.cli.flags import ConfigFile
from cdc_lake.cli.output import Output, answer, print_rows, say
from cdc_lake.config import load_config
from cdc_lake.packaging import PLAN, Arch, UploadPlan, build
from cdc_lake.spark.versions import profile_name

if TYPE_CHECKING:
    from cdc_lake.emr.submit import Submission, Target

emr_app = typer.Typer(
    help="Submit jobs to Amazon EMR, on EC2 or Serverless (setting: emr).", no_args_is_help=True, rich_markup_mode=None
)

_PASS_ON = {"ignore_unknown_options": True}


Job = Annotated[
    Literal["bronze", "silver", "gold", "maintain"],
    typer.Argument(metavar="JOB", help="Name the job: bronze, silver, gold or maintain."),
]
Flags = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FLAGS]...", help="Pass the job's flags, as after `spark-submit jobs/bronze.py`."),
]
ClusterId = Annotated[str | None, typer.Option("--cluster-id", help="Use this cluster instead of emr.cluster.id.")]


def package(
    profile: Annotated[
        str | None, typer.Option(help="Use the jars of this profile (default: the installed PySpark's).")
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


@emr_app.command(context_settings=_PASS_ON, epilog="Example: cdc-lake emr render bronze --table 'shop.public.*'")
def render(
    job: Job,
    flags: Flags = None,
    form: Annotated[
        Literal["cli", "json"],
        typer.Option("--as", help="Print a shell command (cli) or the boto3 request (json)."),
    ] = "cli",
    cluster_id: ClusterId = None,
    config: ConfigFile = None,
) -> None:
    """Print the request that submits a job. Sends nothing."""
    target, submission = _opened(job, flags or [], cluster_id, config)
    if form == "json":
        answer(json.dumps(target.request(submission), indent=2, ensure_ascii=False))
    else:
        answer(target.line(submission))


@emr_app.command(context_settings=_PASS_ON, epilog="Example: cdc-lake emr submit silver --table 'shop.public.*'")
def submit(job: Job, flags: Flags = None, cluster_id: ClusterId = None, config: ConfigFile = None) -> None:
    """Submit a job. Prints the id of its step or job run."""
    target, submission = _opened(job, flags or [], cluster_id, config)
    answer(target.submit(submission))


def _opened(job: Job, flags: list[str], cluster_id: str | None, config: ConfigFile) -> tuple["Target", "Submission"]:
    """The target and the job. Checks the job's flags first: on the cluster, a wrong flag fails minutes later."""
    typer.main.get_group(run.app).commands[job].make_context(f"{job}.py", list(flags))
    settings = load_config(config)
    from cdc_lake.emr.submit import open_target, submission

    return open_target(settings, cluster_id), submission(settings, job, flags)
