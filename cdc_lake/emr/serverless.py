"""EMR Serverless: a job runs as an application's job run."""

import re
from typing import Any

from cdc_lake.aws import client, translated
from cdc_lake.config import EmrConfig
from cdc_lake.emr.model import PYTHON, Submission, role_of, shell_line

_PLAIN = re.compile(r"[\w.,:/=#@%+-]+")
"""Values without characters at which EMR may split the text of parameters."""


class Serverless:
    """An application that runs job runs; see `cdc_lake.emr.Target`.

    Args:
        settings: EMR's settings, with `serverless`.
    """

    def __init__(self, settings: EmrConfig) -> None:
        assert settings.serverless is not None, "checked by open_target"
        self._settings = settings
        self._application = settings.serverless.application

    def request(self, job: Submission) -> dict[str, Any]:
        """See `Target`. The operation is StartJobRun."""
        settings = _settings(job)
        plain = {name: value for name, value in settings.items() if _PLAIN.fullmatch(value)}
        others = {name: value for name, value in settings.items() if name not in plain}
        overrides = {
            **({"applicationConfiguration": [_spark_defaults(others)]} if others else {}),
            **({"monitoringConfiguration": _logs(self._settings.logs)} if self._settings.logs else {}),
        }
        return {
            "applicationId": self._application,
            "executionRoleArn": role_of(job),
            "name": job.name,
            "jobDriver": {
                "sparkSubmit": {
                    "entryPoint": job.entry,
                    "entryPointArguments": list(job.arguments),
                    "sparkSubmitParameters": " ".join(f"--conf {name}={value}" for name, value in plain.items()),
                }
            },
            **({"configurationOverrides": overrides} if overrides else {}),
            **({"tags": dict(self._settings.tags)} if self._settings.tags else {}),
            # The default timeout is twelve hours.
            **({"executionTimeoutMinutes": 0} if job.is_endless else {}),
        }

    def line(self, job: Submission) -> str:
        request = self.request(job)
        timeout = request.get("executionTimeoutMinutes")
        flags = {
            "--region": self._settings.region,
            "--application-id": request["applicationId"],
            "--execution-role-arn": request["executionRoleArn"],
            "--name": request["name"],
            "--job-driver": request["jobDriver"],
            "--configuration-overrides": request.get("configurationOverrides"),
            "--tags": request.get("tags"),
            "--execution-timeout-minutes": None if timeout is None else str(timeout),
        }
        return shell_line("aws emr-serverless start-job-run", flags)

    def submit(self, job: Submission) -> str:
        request, emr = self.request(job), client("emr-serverless", self._settings.region)
        with translated(f"application {self._application}"):
            return str(emr.start_job_run(**request)["jobRunId"])


def _settings(job: Submission) -> dict[str, str]:
    return {
        "spark.archives": ",".join(job.archives),
        "spark.jars": ",".join(job.jars),
        "spark.emr-serverless.driverEnv.PYSPARK_DRIVER_PYTHON": PYTHON,
        "spark.emr-serverless.driverEnv.PYSPARK_PYTHON": PYTHON,
        "spark.executorEnv.PYSPARK_PYTHON": PYTHON,
        **{f"spark.emr-serverless.driverEnv.{name}": value for name, value in job.variables.items()},
        **job.settings,
    }


def _spark_defaults(settings: dict[str, str]) -> dict[str, Any]:
    return {"classification": "spark-defaults", "properties": settings}


def _logs(url: str) -> dict[str, Any]:
    return {"s3MonitoringConfiguration": {"logUri": f"{url}/"}}
