"""`cdc-lake emr`: the jobs on Amazon EMR."""

import json
from enum import StrEnum
from typing import Annotated, Any

import typer
import typer.main
from rich.box import SIMPLE_HEAD
from rich.table import Table

from cdc_lake.cli import run
from cdc_lake.cli.look import Json
from cdc_lake.cli.output import Output, answer, say
from cdc_lake.cli.run import ConfigFile
from cdc_lake.config import load_config
from cdc_lake.errors import ConfigError

app = typer.Typer(help="Run the jobs on Amazon EMR, on EC2 or Serverless; `emr` in the settings.", no_args_is_help=True)

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


What = Annotated[_Target, typer.Argument(help="The job; or `cluster`, which makes one.", metavar="WHAT")]
Flags = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FLAGS]...", help="The job's own flags, as behind `spark-submit jobs/bronze.py`."),
]
ClusterId = Annotated[str | None, typer.Option("--cluster-id", help="Another cluster than emr.cluster.id.")]


@app.command(context_settings=_PASS_ON)
def render(
    what: What,
    flags: Flags = None,
    form: Annotated[
        _Form, typer.Option("--as", help="cli: a line for a shell; json: the request, as boto3 takes it.")
    ] = _Form.cli,
    cluster_id: ClusterId = None,
    config: ConfigFile = None,
) -> None:
    """Print what a job is submitted with, or a cluster made with. Nothing is sent."""
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
    """Submit a job, or make a cluster. Prints the id of the step, the job run or the cluster."""
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
        list[str] | None, typer.Argument(metavar="[ID]...", help="Of steps or job runs; else the newest.")
    ] = None,
    cluster_id: ClusterId = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Say how steps or job runs are. Exit code 1 if one that is named has failed."""
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
        say(f"{one.id} {one.state}: {one.why or 'EMR does not say why'}", error=True)
    if failed:
        # What YARN knows of an exit code is only whether it is 0.
        say(f"exit code and errors of a run: {settings.lake.root}/_runs/, the report of its time", error=True)
    raise typer.Exit(1 if ids and failed else 0)


def _check_flags(what: _Target, flags: list[str]) -> list[str]:
    """The flags, if the job takes them: a cluster would say so minutes later."""
    if what == _CLUSTER:
        if flags:
            raise ConfigError(f"emr cluster {flags[0]}", "a new cluster takes no flags", "see `emr.cluster`")
        return flags
    group = typer.main.get_group(run.app)
    group.commands[what.value].make_context(f"{what.value}.py", list(flags))
    return flags


def _indented(request: dict[str, Any]) -> str:
    return json.dumps(request, indent=2, ensure_ascii=False)
