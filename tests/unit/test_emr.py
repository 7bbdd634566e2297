"""Requests to EMR: compared with the expected ones, accepted by botocore and moto, and parsed by the AWS CLI."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import botocore.session
import pytest
from botocore.validate import ParamValidator
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from moto import mock_aws
from support.emr_requests import CASES, COMMON, EC2, HOSTILE, SERVERLESS, golden, rendered
from typer.testing import CliRunner, Result

from cdc_lake.cli.app import app
from cdc_lake.config import load_config
from cdc_lake.emr.submit import open_target, shell_line, submission
from cdc_lake.errors import CdcLakeError, ConfigError, InfrastructureError

pytestmark = pytest.mark.core

REGION = "eu-central-1"
RENDER = ("render", "bronze", "--table", "a")
BOOTSTRAP = Path(__file__).parents[2] / "cdc_lake" / "emr" / "bootstrap.sh"


@pytest.fixture(autouse=True)
def surroundings(aws_of_nobody: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Invalid AWS credentials, and no configuration file."""
    monkeypatch.delenv("CDC_LAKE_CONFIG", raising=False)


@pytest.fixture
def aws() -> Iterator[None]:
    with mock_aws():
        yield


@pytest.fixture
def cluster(aws: None) -> str:
    """The id of a waiting cluster."""
    machines = {"MasterInstanceType": "m6i.xlarge", "InstanceCount": 1, "KeepJobFlowAliveWhenNoSteps": True}
    made = boto3.client("emr", region_name=REGION).run_job_flow(
        Name="lake", Instances=machines, JobFlowRole="lake-node", ServiceRole="lake-emr"
    )
    return str(made["JobFlowId"])


def written(folder: Path, text: str) -> str:
    file = folder / "cdc-lake.yml"
    file.write_text(text, encoding="utf-8")
    return str(file)


def called(folder: Path, text: str, *words: str) -> Result:
    """`cdc-lake emr …` with these settings."""
    return CliRunner().invoke(app, ["emr", *words, "--config", written(folder, text)])


def refusal(folder: Path, text: str, *words: str) -> CdcLakeError:
    error = called(folder, text, *words).exception
    assert isinstance(error, CdcLakeError)
    return error


def operation(name: str) -> tuple[str, str]:
    return ("emr-serverless", "StartJobRun") if name.startswith("serverless") else ("emr", "AddJobFlowSteps")


def in_shell(line: str) -> list[str]:
    """The words of a line that begins with `aws`, split by a shell."""
    script = f'aws() {{ printf "%s\\0" "$@"; }}\n{line}'
    done = subprocess.run(["bash", "-euc", script], check=True, capture_output=True, env={"HOME": "/nobody"})
    assert not done.stderr
    return done.stdout.decode().split("\0")[:-1]


def flags_of(line: str) -> dict[str, Any]:
    """A printed line's flags, read by a shell, with JSON parsed."""
    _, _, *words = in_shell(line)
    return {
        flag: json.loads(value) if value.startswith(("{", "[")) else value
        for flag, value in zip(words[::2], words[1::2], strict=True)
    }


def steps_request(line: str) -> dict[str, Any]:
    """The AWS CLI's request for a line of `aws emr add-steps`."""
    flags = flags_of(line)
    (step,) = flags["--steps"]
    assert step["Type"] == "CUSTOM_JAR"
    role = {"ExecutionRoleArn": flags["--execution-role-arn"]} if "--execution-role-arn" in flags else {}
    named = {name: step[name] for name in ("Name", "ActionOnFailure")}
    jar = {name: step[name] for name in ("Jar", "Args")}
    return {"JobFlowId": flags["--cluster-id"], "Steps": [{**named, "HadoopJarStep": jar}], **role}


@pytest.mark.parametrize("name", CASES)
def test_rendered_request_matches_the_golden_file(name: str, tmp_path: Path) -> None:
    assert json.loads(rendered(CASES[name], tmp_path)) == golden(name), "run `python tests/support/emr_requests.py`"


@pytest.mark.parametrize("name", CASES)
def test_botocore_accepts_the_request(name: str) -> None:
    service, api = operation(name)
    shape = botocore.session.get_session().get_service_model(service).operation_model(api).input_shape
    token = {"clientToken": "as-boto3-adds-it"} if service == "emr-serverless" else {}

    report = ParamValidator().validate(golden(name) | token, shape)

    assert not report.has_errors(), report.generate_report()
    assert ParamValidator().validate(golden(name) | {"unknown": 1}, shape).has_errors()


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("ec2")])
def test_cli_line_adds_the_same_step(name: str, tmp_path: Path) -> None:
    line = rendered(CASES[name], tmp_path, "cli")

    assert in_shell(line)[:2] == ["emr", "add-steps"]
    assert steps_request(line) == golden(name)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("serverless")])
def test_cli_line_starts_the_same_job_run(name: str, tmp_path: Path) -> None:
    line, request = rendered(CASES[name], tmp_path, "cli"), golden(name)
    flags = flags_of(line)

    assert in_shell(line)[:2] == ["emr-serverless", "start-job-run"]
    said = {
        "applicationId": flags["--application-id"],
        "executionRoleArn": flags["--execution-role-arn"],
        "name": flags["--name"],
        "jobDriver": flags["--job-driver"],
        "configurationOverrides": flags["--configuration-overrides"],
        "tags": flags["--tags"],
    }
    timeout = {"executionTimeoutMinutes": int(flags.get("--execution-timeout-minutes", 1))}
    assert said | (timeout if "executionTimeoutMinutes" in request else {}) == request


@example(HOSTILE)
@example("a,b")
@example("")
@example("\n'\\\n")
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_argument_survives_shell_and_request(tmp_path: Path, text: str) -> None:
    config = load_config(written(tmp_path, EC2))
    job = submission(config, "bronze", ("--table", text))
    target = open_target(config)

    (step,) = target.request(job)["Steps"]

    assert step["HadoopJarStep"]["Args"][-5:] == [job.entry, "--table", text, "--config", "ssm:/cdc-lake/config"]
    assert steps_request(target.line(job)) == target.request(job)


def test_shell_line_puts_each_flag_on_its_own_line() -> None:
    line = shell_line("aws x", {"--a": "b c", "--none": None, "--j": ["'"]})

    assert line == "aws x \\\n  --a 'b c' \\\n  --j '[\n \"'\"'\"'\"\n]'"


@pytest.mark.parametrize("name", CASES)
def test_requests_use_emr_builds_of_delta_and_hudi(name: str) -> None:
    jars = re.findall(r'[^\s",=]+\.jar\b', json.dumps(golden(name)))
    ours = [jar.rpartition("/")[2] for jar in jars if jar.startswith("s3://")]

    assert not [jar for jar in ours if jar.startswith(("delta", "hudi"))]
    assert {"spark-sql-kafka-0-10_2.12-3.5.7.jar", "kafka-clients-3.4.1.jar", "spark-avro_2.12-3.5.7.jar"} <= set(ours)
    assert ("aws-msk-iam-auth-2.3.5-all.jar" in ours) == (CASES[name].settings.find("aws_msk_iam") > 0)
    assert [jar for jar in jars if jar.startswith("/")] == [
        "/usr/share/aws/delta/lib/delta-spark.jar",
        "/usr/share/aws/delta/lib/delta-storage.jar",
        "/usr/lib/hudi/hudi-spark-bundle.jar",
        "/usr/share/aws/iceberg/lib/iceberg-spark3-runtime.jar",
    ]


def test_step_is_added_to_the_cluster(cluster: str, tmp_path: Path) -> None:
    asked = ("submit", "bronze", "--table", "a b,c'd", "--table", "pagila.public.film", "--cluster-id", cluster)
    step = called(tmp_path, EC2, *asked).stdout.strip()

    found = boto3.client("emr", region_name=REGION).describe_step(ClusterId=cluster, StepId=step)["Step"]
    assert found["Name"] == "cdc-lake bronze a b,c'd pagila.public.film"
    assert found["Config"]["Jar"] == "command-runner.jar"
    entry = next(at for at, word in enumerate(found["Config"]["Args"]) if word.endswith("/jobs/bronze.py"))
    assert found["Config"]["Args"][entry + 1 :] == [
        *("--table", "a b,c'd", "--table", "pagila.public.film", "--config", "ssm:/cdc-lake/config")
    ]


def test_job_run_is_started(aws: None, tmp_path: Path) -> None:
    emr = boto3.client("emr-serverless", region_name=REGION)
    made = emr.create_application(name="lake", releaseLabel="emr-7.13.0", type="SPARK", clientToken="t")
    text = SERVERLESS.replace("00f1abcdef", made["applicationId"])

    run = called(tmp_path, text, "submit", "silver", "--table", HOSTILE).stdout.strip()

    found = emr.get_job_run(applicationId=made["applicationId"], jobRunId=run)["jobRun"]
    request = json.loads(called(tmp_path, text, "render", "silver", "--table", HOSTILE, "--as", "json").stdout)
    assert found["jobDriver"] == request["jobDriver"]
    assert found["configurationOverrides"] == request["configurationOverrides"]
    assert found["executionRole"].endswith("role/lake-silver")


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("", RENDER, "emr: the settings have no section `emr`"),
        (EC2, ("render", "maintain", "--table", "a"), "emr.roles.maintain: it is not set"),
        (SERVERLESS, ("submit", "maintain", "--table", "a"), "emr.roles.maintain: it is not set"),
        (f"{COMMON}  cluster: {{}}", RENDER, "emr.cluster.id: it is not set"),
        (f"{COMMON}  cluster: {{}}", ("submit", "bronze", "--table", "a"), "emr.cluster.id: it is not set"),
        (COMMON, RENDER, "`emr`: write one of `cluster` (EMR on EC2) and `serverless`"),
        (f"{EC2}  serverless: {{application: a}}", RENDER, "`emr`: write one of `cluster`"),
        (f"{EC2}  config: conf/prod.yml", RENDER, "`emr.config`"),
        (EC2.replace("s3://artifacts", "artifacts"), RENDER, "`emr.artifacts`: write `s3://bucket/prefix`"),
        (EC2.replace("s3://artifacts", "s3://a,b"), RENDER, "`emr.artifacts`: write `s3://bucket/prefix`"),
        (EC2.replace(":role/lake-gold", ":user/x"), RENDER, "`emr.roles.gold`"),
        (f"{EC2}  spark: {{spark.jars: a}}", RENDER, "`spark.jars` is set by cdc_lake"),
        (f"{EC2}  spark: {{executor.memory: 4g}}", RENDER, "they begin with `spark.`"),
        (f"{EC2}  spark: {{spark.x.password: hunter2}}", RENDER, "anyone could read `spark.x.password`"),
    ],
)
def test_missing_or_wrong_settings_are_named(tmp_path: Path, text: str, words: tuple[str, ...], said: str) -> None:
    error = refusal(tmp_path, text, *words)

    assert said in str(error)
    assert error.exit_code == 2
    assert "hunter2" not in str(error)


@pytest.mark.parametrize("words", [("--tabel", "a"), (), ("--table", "a", "--parallel", "none"), ("--model", "a")])
def test_unknown_job_flags_are_refused_before_sending(tmp_path: Path, words: tuple[str, ...]) -> None:
    refused = called(tmp_path, EC2, "submit", "bronze", *words)

    assert refused.exit_code == 2
    assert "Usage: bronze.py" in refused.stderr


def test_missing_application_is_a_config_error(aws: None, tmp_path: Path) -> None:
    error = refusal(tmp_path, SERVERLESS, "submit", "bronze", "--table", "a")

    assert type(error) is ConfigError
    assert "application 00f1abcdef: it does not exist" in str(error)


def test_unresponsive_emr_is_an_infrastructure_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")

    error = refusal(tmp_path, EC2, "submit", "bronze", "--table", "a")

    assert type(error) is InfrastructureError
    assert "cluster j-3H0ABCDEFGHIJ: AWS does not respond (EndpointConnectionError)" in str(error)


def test_secrets_are_never_rendered_sent_or_printed(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = "canary-8f1c"
    monkeypatch.setenv("REGISTRY_PASSWORD", canary)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", canary)
    for name, put in (("/canary", canary), ("/cdc-lake/config", f"registry: {{proxy: '{canary}'}}")):
        boto3.client("ssm", region_name=REGION).put_parameter(Name=name, Value=put, Type="SecureString")
    text = EC2 + "registry: {auth: {basic: {user: u, password: 'env:REGISTRY_PASSWORD'}}, proxy: 'ssm:/canary'}\n"
    said = []
    for words in (
        RENDER,
        (*RENDER, "--as", "json"),
        ("submit", "bronze", "--table", "a", "--cluster-id", cluster),
    ):
        result = called(tmp_path, text, *words)
        said += [result.output, str(result.exception)]
    emr = boto3.client("emr", region_name=REGION)
    said.append(str(emr.list_steps(ClusterId=cluster)))

    assert [one for one in said if "ssm:/cdc-lake/config" in one]
    assert not [one for one in said if canary in one]


def test_bootstrap_script_installs_python_only_if_missing(tmp_path: Path) -> None:
    sudo = tmp_path / "sudo"
    sudo.write_text('#!/bin/sh\necho "$@"\n')
    sudo.chmod(0o755)
    command = ["/bin/bash", str(BOOTSTRAP)]

    without = subprocess.run(command, env={"PATH": str(tmp_path)}, check=True, capture_output=True, text=True)
    (tmp_path / "python3.11").symlink_to(sys.executable)
    with_it = subprocess.run(command, env={"PATH": str(tmp_path)}, check=True, capture_output=True, text=True)

    assert (without.stdout, with_it.stdout) == ("dnf install -y python3.11\n", "")
