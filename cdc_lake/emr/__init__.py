"""Amazon EMR: the requests that a job is submitted with, on EC2 and Serverless, from one description of it.

job        what either kind of EMR is told: `model.submission`
request    as boto3 takes it: `Ec2.request`, `Serverless.request`, `ec2.cluster_request`
line       the same for AWS' command line, to be pasted into a shell
"""

from typing import Any, Protocol

from cdc_lake.config import EmrConfig
from cdc_lake.emr.ec2 import Ec2
from cdc_lake.emr.model import RunState, Submission
from cdc_lake.emr.serverless import Serverless


class Target(Protocol):
    """Where jobs run."""

    def request(self, job: Submission) -> dict[str, Any]:
        """What a job is submitted with.

        Raises:
            ConfigError: the settings do not say where to, or which role the job has.
        """

    def line(self, job: Submission) -> str:
        """The same for AWS' command line."""

    def submit(self, job: Submission) -> str:
        """Submit a job; the id of its step or run.

        Raises:
            ConfigError: see `request`; or AWS does not know the place or the role, or refuses the credentials.
            InfrastructureError: AWS does not answer.
        """

    def states(self, *ids: str) -> list[RunState]:
        """How these steps or runs are, or the newest there are if none is named.

        Raises:
            ConfigError: there is no such step or run, or AWS refuses the credentials.
            InfrastructureError: AWS does not answer.
        """


def open_target(settings: EmrConfig, cluster_id: str | None = None) -> Target:
    """Where the settings say.

    Args:
        cluster_id: another cluster than the settings'.
    """
    return Serverless(settings) if settings.serverless else Ec2(settings, cluster_id)
