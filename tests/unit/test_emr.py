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
from moto.emr.models import emr_backends
from support.emr_requests import CASES, COMMON, EC2, HOSTILE, NEW, SERVERLESS, golden, rendered
from typer.testing import CliRunner, Result

from cdc_lake.cli.app import app
from cdc_lake.config import load_config
from cdc_lake.emr import open_target
from cdc_lake.emr.ec2 import _state
from cdc_lake.emr.model import RunState, emr_settings, shell_line, submission
from cdc_lake.errors import CdcLakeError, ConfigError, InfrastructureError

pytestmark = pytest.mark.core

REGION = "eu-central-1"
OPERATIONS = {"cluster": ("emr", "RunJobFlow"), "ec2": ("emr", "AddJobFlowSteps")}
BOOTSTRAP = Path(__file__).parents[2] / "cdc_lake" / "emr" / "bootstrap.sh"


@pytest.fixture(autouse=True)
def surroundings(aws_of_nobody: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Invalid AWS credentials, and a terminal of 80 columns."""
    monkeypatch.delenv("CDC_LAKE_CONFIG", raising=False)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def aws() -> Iterator[None]:
    with mock_aws():
        yield


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
    if name.startswith("serverless"):
        return "emr-serverless", "StartJobRun"
    return OPERATIONS["cluster" if "cluster" in name else "ec2"]


def in_shell(line: str) -> list[str]:
    """The words of a line that begins with `aws`, split by a shell."""
    script = f'aws() {{ printf "%s\\0" "$@"; }}\n{line}'
    done = subprocess.run(["bash", "-euc", script], check=True, capture_output=True, env={"HOME": "/nobody"})
    assert not done.stderr
    return done.stdout.decode().split("\0")[:-1]


def flags_of(line: str) -> dict[str, Any]:
    """A printed line's flags, read by a shell, with JSON parsed."""
    _, _, *words = in_shell(line)
    found: dict[str, Any] = {}
    for word in words:
        if word.startswith("--"):
            flag = found[word] = []
        else:
            flag.append(json.loads(word) if word.startswith(("{", "[")) else word)
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


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


@pytest.mark.parametrize("name", [name for name in CASES if operation(name)[1] == "AddJobFlowSteps"])
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


@pytest.mark.parametrize("name", [name for name in CASES if "cluster" in name])
def test_cli_line_creates_the_same_cluster(name: str, tmp_path: Path) -> None:
    flags, request = flags_of(rendered(CASES[name], tmp_path, "cli")), golden(name)
    groups = [
        {"Name": one["InstanceGroupType"].lower(), "InstanceRole": one.pop("InstanceGroupType"), **one}
        for one in flags["--instance-groups"]
    ]
    assert request == {
        "Name": flags["--name"],
        "ReleaseLabel": flags["--release-label"],
        "Applications": flags["--applications"],
        "Instances": {
            "InstanceGroups": groups,
            "Ec2SubnetId": flags["--ec2-attributes"]["SubnetId"],
            "KeepJobFlowAliveWhenNoSteps": flags["--no-auto-terminate"] == [],
        },
        "BootstrapActions": [
            {"Name": one["Name"], "ScriptBootstrapAction": {"Path": one["Path"]}}
            for one in flags["--bootstrap-actions"]
        ],
        "Configurations": flags["--configurations"],
        "ServiceRole": flags["--service-role"],
        "JobFlowRole": flags["--ec2-attributes"]["InstanceProfile"],
        "StepConcurrencyLevel": int(flags["--step-concurrency-level"]),
        "AutoTerminationPolicy": flags["--auto-termination-policy"],
        "VisibleToAllUsers": True,
        "Tags": [dict(zip(("Key", "Value"), tag.split("="), strict=True)) for tag in flags["--tags"]],
        "SecurityConfiguration": flags["--security-configuration"],
        "LogUri": flags["--log-uri"],
    }


@example(HOSTILE)
@example("a,b")
@example("")
@example("\n'\\\n")
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_argument_survives_shell_and_request(tmp_path: Path, text: str) -> None:
    config = load_config(written(tmp_path, EC2))
    job = submission(config, "bronze", ("--table", text))
    target = open_target(emr_settings(config))

    (step,) = target.request(job)["Steps"]

    assert step["HadoopJarStep"]["Args"][-5:] == [job.entry, "--table", text, "--config", "ssm:/cdc-lake/config"]
    assert steps_request(target.line(job)) == target.request(job)


def test_shell_line_puts_each_flag_on_its_own_line() -> None:
    line = shell_line("aws x", {"--a": "b c", "--none": None, "--flag": (), "--words": ("k=v w", "x=y"), "--j": ["'"]})

    assert line == "aws x \\\n  --a 'b c' \\\n  --flag \\\n  --words 'k=v w' x=y \\\n  --j '[\n \"'\"'\"'\"\n]'"


@pytest.mark.parametrize("name", CASES)
def test_requests_use_emr_builds_of_delta_and_hudi(name: str) -> None:
    jars = re.findall(r'[^\s",=]+\.jar\b', json.dumps(golden(name)))
    if "cluster" in name:
        assert jars == []
        return
    ours = [jar.rpartition("/")[2] for jar in jars if jar.startswith("s3://")]

    assert not [jar for jar in ours if jar.startswith(("delta", "hudi"))]
    assert {"spark-sql-kafka-0-10_2.12-3.5.7.jar", "kafka-clients-3.4.1.jar", "spark-avro_2.12-3.5.7.jar"} <= set(ours)
    assert ("aws-msk-iam-auth-2.3.5-all.jar" in ours) == (CASES[name].settings.find("aws_msk_iam") > 0)
    assert [jar for jar in jars if jar.startswith("/")] == [
        "/usr/share/aws/delta/lib/delta-spark.jar",
        "/usr/share/aws/delta/lib/delta-storage.jar",
        "/usr/lib/hudi/hudi-spark-bundle.jar",
    ]


def test_cluster_is_created_and_its_steps_are_listed(aws: None, tmp_path: Path) -> None:
    emr = boto3.client("emr", region_name=REGION)
    made = called(tmp_path, EC2, "submit", "cluster")
    cluster = made.stdout.strip()
    description = emr.describe_cluster(ClusterId=cluster)["Cluster"]
    assert description["ReleaseLabel"] == "emr-7.13.0"
    assert description["Configurations"] == [
        {"Classification": "delta-defaults", "Properties": {"delta.enabled": "true"}}
    ]
    assert emr.list_bootstrap_actions(ClusterId=cluster)["BootstrapActions"][0]["Name"] == "bootstrap.sh"

    asked = ("submit", "bronze", "--table", "a b,c'd", "--table", "pagila.public.film", "--cluster-id", cluster)
    step = called(tmp_path, EC2, *asked).stdout.strip()

    found = emr.describe_step(ClusterId=cluster, StepId=step)["Step"]
    assert found["Name"] == "cdc-lake bronze a b,c'd pagila.public.film"
    assert found["Config"]["Jar"] == "command-runner.jar"
    entry = next(at for at, word in enumerate(found["Config"]["Args"]) if word.endswith("/jobs/bronze.py"))
    assert found["Config"]["Args"][entry + 1 :] == [
        *("--table", "a b,c'd", "--table", "pagila.public.film", "--config", "ssm:/cdc-lake/config")
    ]
    told = called(tmp_path, EC2, "status", step, "--json", "--cluster-id", cluster)
    assert [(one["id"], one["name"]) for one in json.loads(told.stdout)] == [(step, found["Name"])]
    assert told.exit_code == 0
    shown = called(tmp_path, EC2, "status", "--cluster-id", cluster)
    assert step in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80


def test_job_run_is_started_and_its_status_shown(aws: None, tmp_path: Path) -> None:
    emr = boto3.client("emr-serverless", region_name=REGION)
    made = emr.create_application(name="lake", releaseLabel="emr-7.13.0", type="SPARK", clientToken="t")
    text = SERVERLESS.replace("00f1abcdef", made["applicationId"])

    run = called(tmp_path, text, "submit", "silver", "--table", HOSTILE).stdout.strip()

    found = emr.get_job_run(applicationId=made["applicationId"], jobRunId=run)["jobRun"]
    request = json.loads(called(tmp_path, text, "render", "silver", "--table", HOSTILE, "--as", "json").stdout)
    assert found["jobDriver"] == request["jobDriver"]
    assert found["configurationOverrides"] == request["configurationOverrides"]
    assert found["executionRole"].endswith("role/lake-silver")
    for asked in ((run,), ()):
        (told,) = json.loads(called(tmp_path, text, "status", *asked, "--json").stdout)
        assert (told["id"], told["state"]) == (run, "SUCCESS")
    assert run in called(tmp_path, text, "status", run).stdout


def test_failed_step_exits_1_and_names_the_report_location(aws: None, tmp_path: Path) -> None:
    made = called(tmp_path, EC2, "submit", "cluster").stdout.strip()
    named = ("--cluster-id", made)
    step = called(tmp_path, EC2, "submit", "bronze", "--table", "a", *named).stdout.strip()
    (fake,) = emr_backends["123456789012"][REGION].clusters[made].steps
    fake.state = "FAILED"

    told = called(tmp_path, EC2, "status", step, *named)

    assert told.exit_code == 1
    assert f"{step} FAILED: " in told.stderr
    assert "s3://lake/prod/_runs/" in told.stderr
    assert called(tmp_path, EC2, "status", *named).exit_code == 0


def test_status_shows_why_a_step_failed() -> None:
    failure = {"Reason": "Unknown Error.", "LogFile": "s3://logs/stderr.gz"}
    step = {"Id": "s-1", "Name": "n", "Status": {"State": "FAILED", "FailureDetails": failure}}

    assert _state(step) == RunState(id="s-1", name="n", state="FAILED", why="Unknown Error.; s3://logs/stderr.gz")


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("", ("render", "bronze", "--table", "a"), "emr: the settings have no section `emr`"),
        (EC2, ("render", "maintain", "--table", "a"), "emr.roles.maintain: it is not set"),
        (SERVERLESS, ("submit", "maintain", "--table", "a"), "emr.roles.maintain: it is not set"),
        (f"{COMMON}  cluster: {{}}", ("render", "bronze", "--table", "a"), "emr.cluster.id: it is not set"),
        (f"{COMMON}  cluster: {{}}", ("status",), "emr.cluster.id: it is not set"),
        (f"{COMMON}  cluster: {{}}", ("render", "cluster"), "emr.cluster.new.subnet: it is not set"),
        (
            f"{COMMON}  cluster: {{new: {{{NEW.replace(', security_configuration: lake', '')}}}}}",
            ("render", "cluster"),
            "emr.cluster.new.security_configuration: it is not set; name one that allows runtime roles",
        ),
        (SERVERLESS, ("render", "cluster"), "emr.cluster: the settings are for EMR Serverless"),
        (EC2, ("render", "cluster", "--table", "a"), "emr cluster --table: `cluster` takes no flags"),
        (COMMON, ("status",), "`emr`: write one of `cluster` (EMR on EC2) and `serverless`"),
        (f"{EC2}  serverless: {{application: a}}", ("status",), "`emr`: write one of `cluster`"),
        (f"{EC2}  release: emr-7.10.0", ("status",), "`emr.release`: cdc_lake runs on emr-7.11.0 and later of 7"),
        (f"{EC2}  release: emr-spark-8.0.0", ("status",), "emr-spark-8 has Spark 4.0"),
        (f"{EC2}  config: conf/prod.yml", ("status",), "`emr.config`"),
        (EC2.replace("s3://artifacts", "artifacts"), ("status",), "`emr.artifacts`: write `s3://bucket/prefix`"),
        (EC2.replace("s3://artifacts", "s3://a,b"), ("status",), "`emr.artifacts`: write `s3://bucket/prefix`"),
        (EC2.replace(":role/lake-gold", ":user/x"), ("status",), "`emr.roles.gold`"),
        (f"{EC2}  spark: {{spark.jars: a}}", ("status",), "`spark.jars` is set by cdc_lake"),
        (f"{EC2}  spark: {{executor.memory: 4g}}", ("status",), "they begin with `spark.`"),
        (
            f"{EC2}  spark: {{spark.x.password: hunter2}}",
            ("status",),
            "anyone could read `spark.x.password`",
        ),
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


def test_missing_cluster_or_step_is_a_config_error(aws: None, tmp_path: Path) -> None:
    cluster = called(tmp_path, EC2, "submit", "cluster").stdout.strip()

    error = refusal(tmp_path, EC2, "status", "s-NOWHERE", "--cluster-id", cluster)

    assert type(error) is ConfigError
    assert f"step s-NOWHERE: cluster {cluster} does not have this step" in str(error)


def test_missing_application_or_run_is_a_config_error(aws: None, tmp_path: Path) -> None:
    for words in (("submit", "bronze", "--table", "a"), ("status",), ("status", "00nowhere")):
        error = refusal(tmp_path, SERVERLESS, *words)
        assert type(error) is ConfigError
        assert "application 00f1abcdef: it does not exist" in str(error)


def test_unresponsive_emr_is_an_infrastructure_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")

    error = refusal(tmp_path, EC2, "submit", "bronze", "--table", "a")

    assert type(error) is InfrastructureError
    assert "cluster j-3H0ABCDEFGHIJ: AWS does not respond (EndpointConnectionError)" in str(error)


def test_secrets_are_never_rendered_sent_or_printed(aws: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    canary = "canary-8f1c"
    monkeypatch.setenv("REGISTRY_PASSWORD", canary)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", canary)
    for name, put in (("/canary", canary), ("/cdc-lake/config", f"registry: {{proxy: '{canary}'}}")):
        boto3.client("ssm", region_name=REGION).put_parameter(Name=name, Value=put, Type="SecureString")
    text = EC2 + "registry: {auth: {basic: {user: u, password: 'env:REGISTRY_PASSWORD'}}, proxy: 'ssm:/canary'}\n"
    cluster = called(tmp_path, text, "submit", "cluster").stdout.strip()
    said = []
    for words in (
        ("render", "cluster"),
        ("render", "bronze", "--table", "a"),
        ("render", "bronze", "--table", "a", "--as", "json"),
        ("submit", "bronze", "--table", "a", "--cluster-id", cluster),
        ("status", "--cluster-id", cluster),
        ("status", "s-NOWHERE", "--cluster-id", cluster),
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
