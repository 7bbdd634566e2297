"""Sends the lineage of a run by the client of OpenLineage: which tables its tables were made from.

When a run ends, each table that it changed, or that failed, gets two events: START at the run's start, and COMPLETE or
FAIL at its end. Names follow OpenLineage's naming specification, so that the datasets are those of other programs, such
as Spark jobs that read the lake. If events cannot be delivered, the run logs a warning.
"""

import logging
import os
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import yaml

from cdc_lake import aws
from cdc_lake.errors import InstallationError
from cdc_lake.runs.context import PARALLEL_READS, Run, model_header
from cdc_lake.runs.report import TableReport
from cdc_lake.storage.files import Files
from cdc_lake.tables.newest import newest_schema

if TYPE_CHECKING:
    from openlineage.client.event_v2 import InputDataset, OutputDataset, RunEvent

logger = logging.getLogger(__name__)

_SECONDS = 5.0
"""How long a run waits for a response. It tries twice, and sends no further events after a failure."""
_LAYERS = ("bronze", "silver", "gold", "rebuild")
_Name = tuple[str, str]
"""The namespace and the name of a dataset."""


def check_lineage_client(to: str | None) -> None:
    """Check that the client is installed if `run.openlineage` is set.

    Raises:
        InstallationError: it is not installed.
    """
    try:
        if to:
            import openlineage.client  # noqa: F401
    except ModuleNotFoundError as exc:
        cure = "run `pip install 'cdc-lake[lineage]'`, or remove `run.openlineage` from the settings"
        raise InstallationError("run.openlineage", f"{exc.name} is not installed", cure) from exc


def send_lineage(run: Run, files: Files) -> None:
    """Send the events of a run that has ended to the target in the settings."""
    to = run.config.run.openlineage
    changed = [table_report for table_report in run.report.tables if table_report.batches or table_report.error]
    if not to or not changed or run.report.layer not in _LAYERS:
        return
    try:
        from openlineage.client import OpenLineageClient, event_v2

        event_v2.set_producer(f"pkg:pypi/cdc-lake@{version('cdc-lake')}")
        with ThreadPoolExecutor(PARALLEL_READS) as pool:
            events = list(pool.map(lambda table_report: list(_events(run, files, table_report)), changed))
        client = OpenLineageClient(config=_client_config(to))
        for event in (event for of_table in events for event in of_table):
            client.emit(event)
        client.close(_SECONDS)
    except Exception as error:  # transports raise the errors of many libraries
        logger.warning("run.openlineage: %s: the lineage of this run was not delivered: %s", to, error)


def _client_config(to: str) -> dict[str, Any]:
    """The client's configuration; the client adds variables that begin with OPENLINEAGE__."""
    if urlsplit(to).scheme in ("http", "https"):
        return {"transport": {"type": "http", "url": to, "timeout": _SECONDS, "retry": {"total": 1}}}
    if Path(to).suffix in (".yml", ".yaml"):
        config: dict[str, Any] = yaml.safe_load(Path(to).read_text(encoding="utf-8"))
        return config
    return {"transport": {"type": "file", "log_file_path": to, "append": True}}


def _events(run: Run, files: Files, table_report: TableReport) -> "Iterator[RunEvent]":
    from openlineage.client import event_v2
    from openlineage.client.facet_v2 import error_message_run

    report = run.report
    job = event_v2.Job(os.environ.get("OPENLINEAGE_NAMESPACE", "cdc_lake"), f"{report.layer}.{table_report.table}")
    run_id = str(uuid.uuid5(uuid.UUID(report.run_id), table_report.table))
    inputs, outputs = _datasets(run, files, table_report)
    facets: dict[str, Any] = {}
    if table_report.error:
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(table_report.error.message, "Python")
    state = event_v2.RunState.FAIL if table_report.error else event_v2.RunState.COMPLETE
    for at, what, own in (
        (report.started_at, event_v2.RunState.START, {}),
        (report.ended_at or report.started_at, state, facets),
    ):
        yield event_v2.RunEvent(
            eventTime=at.isoformat(),
            eventType=what,
            run=event_v2.Run(run_id, facets=own),
            job=job,
            inputs=inputs,
            outputs=outputs,
        )


def _datasets(run: Run, files: Files, table_report: TableReport) -> "tuple[list[InputDataset], list[OutputDataset]]":
    """What a table was made from, and the table, with its version and its columns."""
    from openlineage.client.event_v2 import InputDataset, OutputDataset
    from openlineage.client.facet_v2 import dataset_version_dataset, schema_dataset

    layer = "silver" if run.report.layer == "rebuild" else run.report.layer
    path, facets = run.lake.path(layer, table_report.table), dict[str, Any]()
    if schema := newest_schema(files, path):
        column = schema_dataset.SchemaDatasetFacetFields
        columns = [column(field.name, field.dataType.simpleString()) for field in schema]
        facets["schema"] = schema_dataset.SchemaDatasetFacet(columns)
    if table_report.version_after is not None:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(str(table_report.version_after))
    outputs = [OutputDataset(*_stored(path), facets=facets)]
    topic = table_report.table.partition("@")[0]
    if layer == "bronze":
        inputs = [_source(run, topic)]
    elif layer == "silver":
        inputs = [_stored(run.lake.path("bronze", topic))]
    else:
        header = model_header(run.config.gold.models, table_report.table)
        inputs = [_stored(run.lake.path("silver", topic)) for topic in header.topics.values()]
        inputs += [_stored(f"{run.config.gold.models}/{source.file}") for source in header.files.values()]
        if header.topic:
            outputs.append(OutputDataset(*_kafka(run, header.topic.topic)))
    return [InputDataset(*name) for name in inputs], outputs


def _source(run: Run, topic: str) -> _Name:
    """The topic of a bronze table, or the folder of its files."""
    root = run.config.files.root
    return _stored(f"{root}/{topic}") if root else _kafka(run, topic)


def _kafka(run: Run, topic: str) -> _Name:
    server, *_ = run.config.kafka.address.split(",")
    return f"kafka://{server.strip()}", topic


def _stored(path: str) -> _Name:
    """The name of a folder or file: `file` and its path, or for S3 the bucket and the key."""
    url = urlsplit(path)
    if "://" not in path or url.scheme == "file":
        return "file", os.path.abspath(path.removeprefix("file://"))
    if url.scheme in aws.S3_SCHEMES:
        return f"s3://{url.netloc}", url.path.strip("/")
    return f"{url.scheme}://{url.netloc}", url.path
