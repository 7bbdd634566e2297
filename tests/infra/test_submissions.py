"""Scheduled runs equal those that `cdc-lake emr` submits, and a stack prints valid settings."""

import json
from importlib.metadata import version
from typing import Any

import pytest
import yaml
from deployments import TARGETS, TERRAFORM, Stack, stack

from cdc_lake.config import Config
from cdc_lake.emr.submit import open_target, submission

pytestmark = pytest.mark.core

FLAGS = {
    "bronze": ["--table", "a.*"],
    "silver": ["--table", "a.*"],
    "gold": ["--model", "sales_*"],
    "maintain-gold": ["--layer", "gold", "--table", "sales_*"],
}
LOGIN = "aws-msk-iam-auth"
"""The jar that a run has if the brokers use IAM, and a scheduled run always."""


def printed(target: str) -> Config:
    """The settings that a stack prints, with ids in AWS' format."""
    made = stack(target)
    block = yaml.safe_load(made.resolved(made.template["Outputs"]["Emr"]["Value"]))["emr"]
    if target == "ec2":
        block["cluster"]["id"] = "j-1"
    else:
        block["serverless"]["application"] = "app1"
    return Config(emr=block, catalog={"type": "glue"})


def plain(request: dict[str, Any]) -> dict[str, Any]:
    """The parts of a request: the file, its arguments, the role, and Spark's settings and files."""
    request = {key[0].lower() + key[1:]: value for key, value in request.items()}
    if "steps" in request:
        words = request["steps"][0]["HadoopJarStep"]["Args"]
        at = next(at for at, word in enumerate(words) if word.endswith(".py"))
        named = {flag: value for flag, value in zip(words[1:at:2], words[2:at:2], strict=True) if flag != "--conf"}
        confs = [value for flag, value in zip(words[1:at:2], words[2:at:2], strict=True) if flag == "--conf"]
        jars, archives, arguments, entry = named["--jars"], named["--archives"], words[at + 1 :], words[at]
        pairs = dict(one.split("=", 1) for one in confs)
    else:
        driver = {key[0].lower() + key[1:]: v for key, v in next(iter(request["jobDriver"].values())).items()}
        pairs = dict(
            one.split("=", 1) for one in driver["sparkSubmitParameters"].removeprefix("--conf ").split(" --conf ")
        )
        jars, archives = pairs.pop("spark.jars"), pairs.pop("spark.archives")
        arguments, entry = driver["entryPointArguments"], driver["entryPoint"]
    return {
        "entry": entry,
        "arguments": arguments,
        "role": request["executionRoleArn"],
        "jars": {jar for jar in jars.split(",") if LOGIN not in jar},
        "archives": archives,
        "settings": pairs,
    }


@pytest.mark.parametrize("job", FLAGS)
@pytest.mark.parametrize("target", TARGETS)
def test_scheduled_run_equals_the_submitted_one(target: str, job: str) -> None:
    config = printed(target)
    submitted = open_target(config).request(submission(config, job.partition("-")[0], FLAGS[job]))
    made = Stack(Target=target, Tables="a.*", Models="sales_*", ArtifactsVersion=version("cdc-lake"))
    schedules = {one["Name"]: one for one in made.of_type("AWS::Scheduler::Schedule").values()}
    asked, wanted = plain(json.loads(schedules[f"cdc-lake-{job}"]["Target"]["Input"])), plain(submitted)

    configurations = yaml.safe_load((TERRAFORM / "configurations.yml").read_text(encoding="utf-8"))
    (shared,) = (one["Properties"] for one in configurations if one["Classification"] == "spark-defaults")
    assert {**shared, **asked.pop("settings")} == {**shared, **wanted.pop("settings")}
    assert asked == wanted
    assert shared.keys() >= {"spark.sql.extensions", "spark.sql.catalogImplementation"}


@pytest.mark.parametrize("target", TARGETS)
def test_shared_settings_equal_the_submitted_ones(target: str) -> None:
    config = printed(target)
    job = submission(config, "bronze", ["--table", "a"])
    configurations = yaml.safe_load((TERRAFORM / "configurations.yml").read_text(encoding="utf-8"))
    (shared,) = (one["Properties"] for one in configurations if one["Classification"] == "spark-defaults")

    assert {**job.settings, "spark.redaction.regex": shared["spark.redaction.regex"]} == shared
