"""`cdc-lake emr`: submit jobs to Amazon EMR."""

import json
from typing import TYPE_CHECKING, Annotated, Literal

import typer
import typer.main

from cdc_lake.cli import run
from cdc_lake.cli.flags import ConfigFile
from cdc_lake.cli.output import answer
from cdc_lake.config import load_config

if TYPE_CHECKING:
    from cdc_lake.emr.submit import Submission, Target

app = typer.Typer(
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


@app.command(context_settings=_PASS_ON)
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


@app.command(context_settings=_PASS_ON)
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
