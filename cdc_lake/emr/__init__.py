"""Submit jobs to Amazon EMR on EC2 or EMR Serverless.

`model.submission` describes a job for both. `Ec2.request` and `Serverless.request` build boto3's request from it, and
`line` the equivalent command for the AWS CLI.
"""

from typing import Any, Protocol

from cdc_lake.config import Config
from cdc_lake.emr.ec2 import Ec2
from cdc_lake.emr.model import Submission, emr_settings
from cdc_lake.emr.serverless import Serverless


class Target(Protocol):
    """A cluster or application that runs jobs."""

    def request(self, job: Submission) -> dict[str, Any]:
        """boto3's request to submit a job.

        Raises:
            ConfigError: the settings lack the target or the job's role.
        """

    def line(self, job: Submission) -> str:
        """The equivalent command for the AWS CLI."""

    def submit(self, job: Submission) -> str:
        """Submit a job.

        Returns:
            The id of its step or job run.

        Raises:
            ConfigError: see `request`; or the target or role does not exist, or AWS rejects the credentials.
            InfrastructureError: AWS does not respond.
        """


def open_target(config: Config, cluster_id: str | None = None) -> Target:
    """The settings' application or cluster.

    Args:
        cluster_id: replaces the settings' cluster.

    Raises:
        ConfigError: the settings have no section `emr`.
    """
    settings = emr_settings(config)
    return Serverless(settings) if settings.serverless else Ec2(settings, cluster_id)
