"""`cdc-lake emr`: run the jobs on Amazon EMR."""

import json
from enum import StrEnum
from typing import Annotated, Any

import typer
import typer.main
from rich.box import SIMPLE_HEAD
from rich.table import Table

from cdc_lake.cli import run
from cdc_lake.cli.flags import ConfigFile, Json
from cdc_lake.cli.output import Output, answer, say
from cdc_lake.config import load_config
from cdc_lake.errors import ConfigError

app = typer.Typer(
    help="Run the jobs on Amazon EMR, on EC2 or Serverless (setting: emr).", no_args_is_help=True, rich_markup_mode=None
)

_PASS_ON = {"ignore_unknown_options": True}
_CLUSTER = "cluster"


class _Target(StrEnum):
    bronze = "bronze"
    silver = "silver"
    gold = "gold"
    maintain = "maintain"
    cluster = _CLUSTER


class _Form(StrEnum):
    cli = "cli"
    json = "json"


What = Annotated[_Target, typer.Argument(help="Name the job, or `cluster` to create a cluster.", metavar="WHAT")]
Flags = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FLAGS]...", help="Pass the job's flags, as after `spark-submit jobs/bronze.py`."),
]
ClusterId = Annotated[str | None, typer.Option("--cluster-id", help="Use this cluster instead of emr.cluster.id.")]


@app.command(context_settings=_PASS_ON)
def render(
    what: What,
    flags: Flags = None,
    form: Annotated[
        _Form, typer.Option("--as", help="Print a shell command (cli) or the boto3 request (json).")
    ] = _Form.cli,
    cluster_id: ClusterId = None,
    config: ConfigFile = None,
) -> None:
    """Print the request that submits a job or creates a cluster. Sends nothing."""
    arguments = _check_flags(what, flags or [])
    settings = load_config(config)
    from cdc_lake.emr import open_target
    from cdc_lake.emr.ec2 import cluster_line, cluster_request
    from cdc_lake.emr.model import emr_settings, submission

    as_json = form is _Form.json
    if what == _CLUSTER:
        answer(_indented(cluster_request(settings)) if as_json else cluster_line(settings))
        return
    job = submission(settings, what.value, arguments)
    target = open_target(emr_settings(settings), cluster_id)
    answer(_indented(target.request(job)) if as_json else target.line(job))


@app.command(context_settings=_PASS_ON)
def submit(what: What, flags: Flags = None, cluster_id: ClusterId = None, config: ConfigFile = None) -> None:
    """Submit a job or create a cluster. Prints its id."""
    arguments = _check_flags(what, flags or [])
    settings = load_config(config)
    from cdc_lake.emr import open_target
    from cdc_lake.emr.ec2 import start_cluster
    from cdc_lake.emr.model import emr_settings, submission

    if what == _CLUSTER:
        answer(start_cluster(settings))
        return
    job = submission(settings, what.value, arguments)
    answer(open_target(emr_settings(settings), cluster_id).submit(job))


@app.command()
def status(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Name steps or job runs (default: the latest).")
    ] = None,
    cluster_id: ClusterId = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Show the state of steps or job runs. Exits with 1 if one failed."""
    settings = load_config(config)
    from cdc_lake.emr import open_target
    from cdc_lake.emr.model import emr_settings

    found = open_target(emr_settings(settings), cluster_id).states(*(ids or ()))
    if as_json:
        answer(json.dumps([one.model_dump() for one in found]))
    else:
        shown = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
        for heading, no_wrap in (("id", True), ("name", False), ("state", True), ("start", True), ("end (UTC)", True)):
            shown.add_column(heading, no_wrap=no_wrap, overflow="fold")
        for one in found:
            shown.add_row(one.id, one.name, one.state, one.started_at or "-", one.ended_at or "-")
        Output().print(shown)
    failed = [one for one in found if one.has_failed]
    for one in failed:
        say(f"{one.id} {one.state}: {one.why or 'EMR gives no reason'}", error=True)
    if failed:
        # YARN only reports whether an exit code is 0.
        say(f"for the exit code and errors, see the run's report in {settings.lake.root}/_runs/", error=True)
    raise typer.Exit(1 if ids and failed else 0)


def _check_flags(what: _Target, flags: list[str]) -> list[str]:
    """Check the job's flags now: on the cluster, a wrong flag fails minutes later."""
    if what == _CLUSTER:
        if flags:
            raise ConfigError(f"emr cluster {flags[0]}", "`cluster` takes no flags", "set them in `emr.cluster`")
        return flags
    group = typer.main.get_group(run.app)
    group.commands[what.value].make_context(f"{what.value}.py", list(flags))
    return flags


def _indented(request: dict[str, Any]) -> str:
    return json.dumps(request, indent=2, ensure_ascii=False)
