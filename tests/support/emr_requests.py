"""The requests to EMR in tests/fixtures/emr. To write them again: `python tests/support/emr_requests.py`."""

import json
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from cdc_lake.cli.app import app

FOLDER = Path(__file__).parents[1] / "fixtures" / "emr"
ROLES = "{" + ", ".join(f"{x}: 'arn:aws:iam::123456789012:role/lake-{x}'" for x in ("bronze", "silver", "gold")) + "}"
COMMON = f"""
lake: {{root: "s3://lake/prod"}}
emr:
  region: eu-central-1
  artifacts: s3://artifacts/cdc-lake
  logs: s3://logs/emr
  roles: {ROLES}
  tags: {{team: data platform}}
"""
EC2 = f"{COMMON}  cluster: {{id: j-3H0ABCDEFGHIJ}}\n"
SERVERLESS = f"{COMMON}  serverless: {{application: 00f1abcdef}}\n"
MSK = "kafka: {auth: aws_msk_iam, bootstrap_servers: 'b-1.lake.x1y2z3.c4.kafka.eu-central-1.amazonaws.com:9098'}\n"
HOSTILE = r"""it's "one, two" \ $HOME `id` ; # é"""


@dataclass(frozen=True)
class Case:
    """The requested jobs, with their settings."""

    settings: str
    asked: tuple[str, ...]


CASES = {
    "ec2-bronze-msk": Case(EC2 + MSK, ("bronze", "--table", "pagila.public.film")),
    "ec2-silver-glue": Case(
        EC2 + "catalog: {type: hive}\n", ("silver", "--table", "pagila.public.*", "--table", "b,c", "--parallel", "8")
    ),
    "ec2-gold-instance-profile": Case(
        COMMON + "  cluster: {id: j-1, runtime_roles: false, on_failure: CANCEL_AND_WAIT}\n"
        "  resources: {executor: {cores: 2, memory: 4g, most: 10}}\n"
        "  spark: {spark.sql.shuffle.partitions: '400'}\n",
        ("gold", "--model", "film_revenue"),
    ),
    "serverless-bronze-continuous": Case(
        SERVERLESS + MSK, ("bronze", "--table", "pagila.public.*", "--continuous", "--interval", "30s")
    ),
    "serverless-silver-glue": Case(
        SERVERLESS
        + f"  config: ssm:/lake/prod\n  spark: {{spark.odd: {json.dumps(HOSTILE)}}}\ncatalog: {{type: hive}}\n",
        ("silver", "--table", HOSTILE),
    ),
}


def rendered(case: Case, folder: Path, form: str = "json") -> str:
    """The output of `cdc-lake emr render`."""
    file = folder / "cdc-lake.yml"
    file.write_text(case.settings, encoding="utf-8")
    found = CliRunner().invoke(app, ["emr", "render", *case.asked, "--as", form, "--config", str(file)])
    assert found.exit_code == 0, found.output
    return found.stdout


def golden(name: str) -> dict[str, Any]:
    """An expected request, with the current version."""
    text = (FOLDER / f"{name}.json").read_text(encoding="utf-8")
    request: dict[str, Any] = json.loads(text.replace("<version>", version("cdc-lake")))
    return request


if __name__ == "__main__":
    import tempfile

    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        for name, case in CASES.items():
            text = rendered(case, Path(work)).replace(f"/{version('cdc-lake')}/", "/<version>/")
            (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")
