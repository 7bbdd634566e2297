"""Submit the demo's jobs with spark-submit: on this machine, or on any other Spark."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cdc_lake.config import CHECKOUT, TABLE_TYPES, TableType
from cdc_lake.embedded.stack import Stack
from cdc_lake.errors import CdcLakeError, InfrastructureError
from cdc_lake.spark.java import SHORT_JVM

SMALL_JVM = f"-Dorg.apache.avro.fastread=true {SHORT_JVM}"
"""Java options that halve the start-up time, for jobs with a few thousand rows."""


@dataclass(frozen=True)
class Platform:
    """A Spark to submit jobs to.

    Attributes:
        command: `spark-submit` with its flags.
        jobs: folder of the jobs' files.
        config: the configuration file.
        variables: the jobs' environment, except for the `CDC_LAKE__` variables that the demo sets.
        lake: root of the lake; default: in the demo's folder.
        download: copies a lake elsewhere to a local folder, where the comparison reads it.
        attempts: how often to submit a job that exits with 10 (no response), like a scheduler does.
    """

    command: Sequence[str]
    jobs: Path
    config: Path
    variables: Mapping[str, str]
    lake: str | None = None
    download: Callable[[Path], None] = lambda folder: None
    attempts: int = 1


def this_machine() -> Platform:
    """The Spark of this Python environment."""
    programs = Path(sys.executable).parent
    return Platform(
        command=(str(programs / "spark-submit"), "--conf", f"spark.driver.extraJavaOptions={SMALL_JVM}"),
        jobs=CHECKOUT / "jobs",
        config=CHECKOUT / "conf" / "cdc-lake.yml",
        variables={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}"},
    )


class Jobs:
    """Submits jobs, each with a spark-submit of its own.

    Args:
        platform: where they run.
        stack: the servers.
        lake: root of the lake.
        table_type: silver's table type.

    Attributes:
        seconds: topic or model -> time that jobs have spent on it.
    """

    def __init__(self, platform: Platform, stack: Stack, lake: str, table_type: TableType) -> None:
        self._platform = platform
        self._environment = {
            **platform.variables,
            "CDC_LAKE__STACK__FOLDER": str(stack.folder),
            "CDC_LAKE__LAKE__ROOT": lake,
            "CDC_LAKE__DEFAULTS__STORAGE": storage_variable(table_type),
        }
        self.seconds: dict[str, float] = {}

    def submit(self, layer: str, *flags: str) -> dict[str, Any]:
        """Run a layer's job, and return its report.

        Raises:
            CdcLakeError: the job failed; with its output.
        """
        job, config = str(self._platform.jobs / f"{layer}.py"), str(self._platform.config)
        with TemporaryDirectory() as folder:
            file = Path(folder) / "report.json"
            command = [*self._platform.command, job, "--config", config, "--json-file", str(file), *flags]
            for attempts_left in reversed(range(self._platform.attempts)):
                done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
                if done.returncode != InfrastructureError.exit_code or not attempts_left:
                    break
            if done.returncode:
                raise CdcLakeError(
                    f"the {layer} job",
                    f"it ended with exit code {done.returncode}",
                    f"its output:\n{done.stdout}{done.stderr}",
                )
            report: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        for table in report["tables"]:
            spent = sum(table["seconds"].values())
            self.seconds[table["table"]] = self.seconds.get(table["table"], 0.0) + spent
        return report


def storage_variable(table_type: TableType) -> str:
    """The value of CDC_LAKE__DEFAULTS__STORAGE for a table type."""
    return f"[{TABLE_TYPES[table_type].model_dump_json(exclude_none=True)}]"
