"""The templates are valid for AWS, their settings are valid for cdc_lake, and both languages agree."""

import json
import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from botocore.session import get_session
from botocore.validate import ParamValidator
from cfnlint.api import lint_file
from deployments import (
    ACCOUNT,
    GIVEN,
    LAKE,
    LAYERS,
    MSK,
    PREFIX,
    REGION,
    ROLE,
    TARGETS,
    TEMPLATE,
    TERRAFORM,
    Stack,
    filled,
    stack,
    terraform_blocks,
    terraform_defaults,
    terraform_files,
)
from support import CHECKOUT

from cdc_lake.config import Config, load_config
from cdc_lake.runs.context import lake_of
from cdc_lake.spark.jars import read_lock
from cdc_lake.spark.java import JAVA_DEFAULTS
from cdc_lake.spark.session import DRIVER_OPTIONS, EXECUTOR_OPTIONS, SPARK_DEFAULTS

pytestmark = pytest.mark.core

MOST_BYTES = 1_000_000
"""Limit for a template in a bucket. A template in a request may have 51,200 bytes."""
VERSION = f"s3://{LAKE}-artifacts/cdc_lake/0.1.0"
JOBS = {
    "bronze": ("bronze", ["--table", "a.*", "--table", "b.c"]),
    "silver": ("silver", ["--table", "a.*", "--table", "b.c"]),
    "gold": ("gold", ["--model", "sales_*"]),
    "maintain-bronze": ("maintain", ["--layer", "bronze", "--table", "a.*", "--table", "b.c"]),
    "maintain-silver": ("maintain", ["--layer", "silver", "--table", "a.*", "--table", "b.c"]),
    "maintain-gold": ("maintain", ["--layer", "gold", "--table", "sales_*"]),
}
SIZED = {"spark.sql.shuffle.partitions", "spark.ui.enabled"}
"""Settings that differ between a cluster and a laptop."""
CALLS = {"serverless": ("emr-serverless", "StartJobRun"), "ec2": ("emr", "AddJobFlowSteps")}


def scheduled(target: str) -> dict[str, dict[str, Any]]:
    """CloudFormation's schedules by job."""
    made = Stack(Target=target, Tables="a.*,b.c", Models="sales_*", SchedulesEnabled="true")
    schedules = made.of_type("AWS::Scheduler::Schedule").values()
    return {one["Name"].removeprefix("cdc-lake-"): one for one in schedules}


def request_of_terraform(target: str, job: str) -> str:
    layer, arguments = JOBS[job]
    jars = terraform_defaults()["jars"]
    return filled(
        "requests/step.json" if target == "ec2" else "requests/job_run.json",
        application_id="app-1",
        cluster_id="j-1",
        role=f"{ROLE}{layer}",
        job=job,
        file=layer,
        version=VERSION,
        jars=",".join(f"{VERSION}/jars/{jar}" for jar in jars),
        parameter="/cdc-lake/config",
        region=REGION,
        logs_bucket=f"{LAKE}-logs",
        arguments=", ".join(map(json.dumps, arguments)),
    )


def as_boto_says(tree: Any, service: str) -> Any:
    """In a universal target, names begin in upper case, although the service's own names may not."""
    if service != "emr-serverless":
        return tree
    if isinstance(tree, dict):
        return {key[0].lower() + key[1:]: as_boto_says(value, service) for key, value in tree.items()}
    return tree


def test_cloudformation_template_passes_the_linter() -> None:
    assert lint_file(TEMPLATE) == []
    assert len(TEMPLATE.read_bytes()) < MOST_BYTES


def test_cloudformation_linter_finds_an_unknown_property(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yml"
    broken.write_text(TEMPLATE.read_text(encoding="utf-8").replace("MaximumCapacity:", "MostCapacity:"), "utf-8")

    assert [match.rule.id for match in lint_file(broken)] == ["E3002"]


def test_every_parameter_of_cloudformation_is_described() -> None:
    parameters = stack().template["Parameters"]

    assert [name for name, one in parameters.items() if not one.get("Description")] == []
    assert {name for name, one in parameters.items() if "Default" not in one} == GIVEN.keys() - {"Settings"}


def test_every_variable_of_terraform_is_described_typed_and_used() -> None:
    variables = {name: block for (name,), block in terraform_blocks("variable")}
    code = "\n".join(file.read_text(encoding="utf-8") for file in TERRAFORM.glob("*.tf"))
    asked = set(
        re.findall(r"\bvar\.(\w+)", re.sub(r'variable "\w+" \{.*?^}', "", code, flags=re.DOTALL | re.MULTILINE))
    )

    assert [name for name, block in variables.items() if not (block.get("description") and block.get("type"))] == []
    assert asked == variables.keys()
    assert [labels for labels, block in terraform_blocks("output") if not block.get("description")] == []


def test_every_resource_of_terraform_is_tagged() -> None:
    (((provider,), block),) = terraform_blocks("provider")

    assert (provider, block["default_tags"][0]["tags"]) == ("aws", "${merge({Project = var.name}, var.tags)}")


def test_every_local_is_declared_once_and_used() -> None:
    declared = [
        name
        for tree in terraform_files().values()
        for block in tree.get("locals", ())
        for name in block
        if not name.startswith("__")
    ]
    code = "\n".join(file.read_text(encoding="utf-8") for file in TERRAFORM.glob("*.tf"))

    assert len(declared) == len(set(declared))
    assert set(re.findall(r"\blocal\.(\w+)", code)) == set(declared)


def test_every_terraform_statement_is_in_a_policy_file() -> None:
    code = "\n".join(file.read_text(encoding="utf-8") for file in TERRAFORM.glob("*.tf"))
    asked = re.findall(r"Statement\s*=\s*(\S+)", code)
    named = re.findall(r'policies/([\w${}.]+)\.yml"', code)
    expanded = {
        name
        for text in named
        for layer, target in ((layer, target) for layer in LAYERS for target in TARGETS)
        for name in [text.replace("${layer}", layer).replace("${var.target}", target)]
    }

    assert asked
    assert all(one.startswith(("yamldecode(templatefile(", "local.layer_statements[")) for one in asked)
    assert "aws_iam_policy_document" not in code
    assert expanded == {file.stem for file in (TERRAFORM / "policies").glob("*.yml")}


def test_terraform_buckets_are_private_and_encrypted() -> None:
    resources = {labels: block for labels, block in terraform_blocks("resource")}
    buckets = [labels for labels in resources if labels[0] == "aws_s3_bucket"]
    each = "${aws_s3_bucket.each}"

    assert buckets == [("aws_s3_bucket", "each")]
    for companion in ("policy", "public_access_block", "server_side_encryption_configuration", "ownership_controls"):
        assert resources[f"aws_s3_bucket_{companion}", "each"]["for_each"] == each
    closed = resources["aws_s3_bucket_public_access_block", "each"]
    actions = ("block_public_acls", "block_public_policy", "ignore_public_acls", "restrict_public_buckets")
    assert [closed[action] for action in actions] == [True] * 4
    (rule,) = resources["aws_s3_bucket_server_side_encryption_configuration", "each"]["rule"]
    (way,) = rule["apply_server_side_encryption_by_default"]
    assert (way["sse_algorithm"], way["kms_master_key_id"]) == ("aws:kms", "${aws_kms_key.lake.arn}")
    assert 'use != "logs"' in resources["aws_s3_bucket_versioning", "each"]["for_each"]
    assert all(
        block["enable_key_rotation"] is True for labels, block in resources.items() if labels[0] == "aws_kms_key"
    )
    assert resources["aws_sns_topic", "alarms"]["kms_master_key_id"] == "${aws_kms_key.alarms.arn}"


@pytest.mark.parametrize("target", TARGETS)
def test_cloudformation_buckets_are_private_and_encrypted(target: str) -> None:
    made = stack(target)
    buckets = made.of_type("AWS::S3::Bucket")
    closed = made.of_type("AWS::S3::BucketPolicy").values()

    assert buckets.keys() == {"Lake", "Artifacts", "Logs"}
    assert {one["Bucket"] for one in closed} == {one["BucketName"] for one in buckets.values()}
    for name, one in buckets.items():
        assert set(one["PublicAccessBlockConfiguration"].values()) == {True}
        (rule,) = one["BucketEncryption"]["ServerSideEncryptionConfiguration"]
        assert rule["ServerSideEncryptionByDefault"]["SSEAlgorithm"] == "aws:kms"
        assert ("VersioningConfiguration" in one) == (name != "Logs")
    for policy in closed:
        (statement,) = policy["PolicyDocument"]["Statement"]
        bucket = f"arn:aws:s3:::{policy['Bucket']}"
        assert (statement["Sid"], statement["Resource"]) == ("OnlyOverTls", [bucket, f"{bucket}/*"])
    assert all(one["EnableKeyRotation"] is True for one in made.of_type("AWS::KMS::Key").values())
    assert made.resources["Topic"]["KmsMasterKeyId"] == "AlarmsKey.Arn"


def config_texts() -> list[str]:
    """The settings in Parameter Store, from Terraform and from CloudFormation."""
    made = Stack(RegistryType="glue", RegistryUrl="embedded", MskClusterArn=MSK)
    terraform = filled(
        "config.yml",
        kafka=GIVEN["KafkaBootstrapServers"],
        kafka_auth="aws_msk_iam",
        registry_type="glue",
        registry_url="embedded",
        lake_bucket=LAKE,
        region=REGION,
        prefix=PREFIX,
    )
    return [f"{terraform}\n{GIVEN['Settings']}", made.resources["Config"]["Value"]]


def test_parameter_store_settings_are_valid(tmp_path: Path) -> None:
    found: list[Config] = []
    for number, text in enumerate(config_texts()):
        assert len(text) <= 4096
        file = tmp_path / f"{number}.yml"
        file.write_text(text, encoding="utf-8")
        found.append(load_config(file))

    terraform, cloudformation = found
    assert terraform == cloudformation
    assert terraform.lake.root == f"s3://{LAKE}"
    assert terraform.kafka.bootstrap_servers == GIVEN["KafkaBootstrapServers"]
    assert terraform.kafka.auth == "aws_msk_iam"
    assert Config(**yaml.safe_load(Stack().resources["Config"]["Value"])).kafka.auth == "none"
    assert terraform.defaults.deletes.mode == "hard"
    known = yaml.safe_load((CHECKOUT / "conf" / "cdc-lake.yml").read_text(encoding="utf-8"))
    assert known.keys() - yaml.safe_load(config_texts()[0]).keys() == {"gold", "stack", "tables"}


def test_created_databases_are_those_the_catalog_uses() -> None:
    config = Config(**yaml.safe_load(config_texts()[0]))
    held = [{"format": "delta"}, {"format": "hudi"}, {"format": "hudi", "type": "mor"}]
    held += [{"format": "iceberg"}, {"format": "iceberg", "type": "mor"}]
    wanted = {config.catalog.name_of("bronze", "pagila.public.film")[0], config.catalog.name_of("gold", "x")[0]}
    for silver in (held, held[::-1]):
        several = config.model_copy(update={"defaults": config.defaults.model_validate({"storage": silver})})
        targets = lake_of(several).silver("pagila.public.film")
        wanted |= {config.catalog.name_of("silver", target.name)[0] for target in targets}
    databases = stack().of_type("AWS::Glue::Database").values()

    assert {one["DatabaseInput"]["Name"] for one in databases} == wanted
    assert {f"{PREFIX}_{name}" for name in re.findall(r'"(\w+)"', _databases_of_terraform())} == wanted
    few = stack(hudi=False, iceberg=False).of_type("AWS::Glue::Database").values()
    assert {one["DatabaseInput"]["Name"] for one in few} == {f"{PREFIX}_{layer}" for layer in LAYERS[:3]}


def _databases_of_terraform() -> str:
    (found,) = (
        block["databases"]
        for block in chain(*(tree.get("locals", ()) for tree in terraform_files().values()))
        if "databases" in block
    )
    return str(found)


@pytest.mark.parametrize("target", TARGETS)
def test_scheduled_requests_match_the_service_model(target: str) -> None:
    service, operation = CALLS[target]
    shape = get_session().get_service_model(service).operation_model(operation).input_shape
    for job, schedule in scheduled(target).items():
        for request in (schedule["Target"]["Input"], request_of_terraform(target, job)):
            asked = as_boto_says(json.loads(request), service)
            assert not ParamValidator().validate(asked, shape).has_errors(), job


@pytest.mark.parametrize("target", TARGETS)
def test_both_languages_schedule_the_same_runs(target: str) -> None:
    schedules = scheduled(target)

    assert schedules.keys() == JOBS.keys()
    for job, schedule in schedules.items():
        assert json.loads(schedule["Target"]["Input"]) == json.loads(request_of_terraform(target, job))
        assert schedule["State"] == "ENABLED"
    call = {"serverless": "emrserverless:startJobRun", "ec2": "emr:addJobFlowSteps"}[target]
    assert {one["Target"]["Arn"] for one in schedules.values()} == {f"arn:aws:scheduler:::aws-sdk:{call}"}


@pytest.mark.parametrize("job", JOBS)
def test_scheduled_run_has_the_job_its_arguments_and_role(job: str) -> None:
    layer, arguments = JOBS[job]
    step, run = (json.loads(scheduled(target)[job]["Target"]["Input"]) for target in ("ec2", "serverless"))
    words = step["Steps"][0]["HadoopJarStep"]["Args"]
    submitted = run["JobDriver"]["SparkSubmit"]
    given = [*arguments, "--config", "ssm:/cdc-lake/config"]

    assert words[-len(given) - 1 :] == [f"{VERSION}/jobs/{layer}.py", *given]
    assert (submitted["EntryPoint"], submitted["EntryPointArguments"]) == (f"{VERSION}/jobs/{layer}.py", given)
    assert {step["ExecutionRoleArn"], run["ExecutionRoleArn"]} == {f"arn:aws:iam::{ACCOUNT}:role/cdc-lake-{layer}"}
    assert (CHECKOUT / "jobs" / f"{layer}.py").is_file()
    assert run["ClientToken"] == "<aws.scheduler.execution-id>"


def test_shipped_jars_are_the_locked_ones_that_emr_lacks() -> None:
    locked = chain(*(read_lock(CHECKOUT / "conf" / "jars" / f"{name}.lock") for name in ("emr7", "msk")))
    wanted = [jar.path(Path()).name for jar in locked if not re.match("delta|hudi|iceberg|sqlite", jar.artifact)]
    words = json.loads(scheduled("ec2")["bronze"]["Target"]["Input"])["Steps"][0]["HadoopJarStep"]["Args"]
    shipped = words[words.index("--jars") + 1].split(",")

    assert sorted(terraform_defaults()["jars"]) == sorted(wanted)
    assert [jar.rpartition("/")[2] for jar in shipped if jar.startswith(VERSION)] == sorted(wanted)


def test_cluster_settings_match_spark_defaults() -> None:
    terraform = yaml.safe_load((TERRAFORM / "configurations.yml").read_text(encoding="utf-8"))
    wanted = {one["Classification"]: one["Properties"] for one in terraform}
    cluster = stack("ec2").resources["Cluster"]["Configurations"]
    (application,) = stack().resources["Application"]["RuntimeConfiguration"]

    assert {one["Classification"]: one["ConfigurationProperties"] for one in cluster} == wanted
    assert application["Properties"] == wanted[application["Classification"]]
    spark = wanted["spark-defaults"]
    ours = {key: value for key, value in spark.items() if key in SPARK_DEFAULTS and key not in SIZED}
    wanted_java = {key: f"{JAVA_DEFAULTS} {SPARK_DEFAULTS[key]}" for key in (DRIVER_OPTIONS, EXECUTOR_OPTIONS)}
    assert ours == {key: SPARK_DEFAULTS[key] for key in ours} | wanted_java
    assert ours.keys() >= {"spark.sql.extensions", "spark.sql.catalog.spark_catalog", "spark.kryo.registrator"}
    for secret in (
        "sasl.jaas.config",
        "ssl.keystore.key",
        "registry.basic.auth.user.info",
        "my_credential",
        "api-key",
        "password",
    ):
        assert re.search(spark["spark.redaction.regex"], secret)


@pytest.mark.parametrize("target", TARGETS)
def test_output_is_a_valid_emr_settings_block(target: str) -> None:
    made = stack(target)
    text = made.resolved(made.template["Outputs"]["Emr"]["Value"])
    block = yaml.safe_load(text)["emr"]

    assert block.pop("roles") == {layer: f"{ROLE}{layer}" for layer in LAYERS}
    assert block == {
        "name": "cdc-lake",
        "region": REGION,
        "artifacts": f"s3://{LAKE}-artifacts/cdc_lake",
        "config": "ssm:/cdc-lake/config",
        "logs": f"s3://{LAKE}-logs/{target}",
        **({"cluster": {"id": "j-1"}} if target == "ec2" else {"serverless": {"application": "app-1"}}),
    }
    (terraform,) = (output["value"] for (name,), output in terraform_blocks("output") if name == "emr")
    assert all(
        re.search(rf'\b{name}"?\s*[=:]', terraform) for name in (*block.keys() - CALLS.keys() - {"cluster"}, "roles")
    )
    assert all(f'"{name}"' in terraform for name in ("cluster", "serverless"))


def test_every_alarm_notifies_the_topic() -> None:
    for target in TARGETS:
        alarms = stack(target).of_type("AWS::CloudWatch::Alarm")
        assert {one["AlarmName"] for one in alarms.values()} == {
            f"cdc-lake-{what}" for what in ("failed", "no-success", "not-started")
        }
        assert all(one["AlarmActions"] == ["Topic"] for one in alarms.values())
    of_terraform = {
        labels[1] for labels, _ in terraform_blocks("resource") if labels[0] == "aws_cloudwatch_metric_alarm"
    }
    assert of_terraform == {"failed", "no_success", "not_started"}


def test_page_names_every_variable_without_default() -> None:
    page = (CHECKOUT / "docs" / "how-to" / "infrastructure.md").read_text(encoding="utf-8")

    assert [
        name for (name,), block in terraform_blocks("variable") if "default" not in block and name not in page
    ] == []
    assert [name for name in GIVEN if f"{name}=" not in page and name != "Settings"] == []
