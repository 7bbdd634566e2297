"""docs/how-to/airflow.md and kubernetes.md retry the exit codes that a retry can change, and no others."""

import ast
import re
from typing import Any

import pytest
import yaml
from pages.errors import classes
from settings_page import examples, page

pytestmark = pytest.mark.core

RETRYABLE = sorted(
    {error.exit_code for error in classes()} - {error.exit_code for error in classes() if not error.retryable}
)
"""Exit codes of which every error can be retried."""


def python(text: str) -> list[ast.Module]:
    return [ast.parse(block) for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)]


def cron_job() -> Any:
    return yaml.safe_load(examples(page("how-to/kubernetes.md"))[0])


def test_airflow_retries_these_codes() -> None:
    dag, _ = python(page("how-to/airflow.md"))
    constants = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in dag.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }

    assert constants["RETRYABLE"] == tuple(RETRYABLE)


def test_airflow_2_replaces_every_airflow_import() -> None:
    """The DAG uses the same names with the imports of both versions."""
    dag, former = (
        {
            name.name
            for node in module.body
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("airflow")
            for name in node.names
        }
        for module in python(page("how-to/airflow.md"))
    )

    assert former == dag


def test_kubernetes_retries_these_codes() -> None:
    """The API server accepts exit codes in ascending order only."""
    *_, rule = cron_job()["spec"]["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]

    assert rule == {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": RETRYABLE}}


def test_kubernetes_policy_has_the_restart_policy_that_it_needs() -> None:
    assert cron_job()["spec"]["jobTemplate"]["spec"]["template"]["spec"]["restartPolicy"] == "Never"
