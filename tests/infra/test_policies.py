"""IAM policies: least privilege, the same in both languages, and sufficient for the code."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import product
from typing import Any

import pytest
from deployments import (
    CERTIFICATES,
    LAKE,
    LAYERS,
    MSK,
    PREFIX,
    TARGETS,
    TERRAFORM,
    Statement,
    stack,
    terraform_layer,
    terraform_policies,
)
from policy_lint import complaints, wildcards

from cdc_lake.config import Config, LakeConfig, StorageConfig, TableConfig
from cdc_lake.runs.context import lake_of
from cdc_lake.runs.report import Report

pytestmark = pytest.mark.core

REASONS = {
    "OnlyOverTls": "it denies all access without TLS, to everyone, in its own bucket",
    "AccountDecides": "a key's policy covers that key only; without this statement the key has no administrator",
    "EncryptAlarms": "a key's policy speaks of that key only",
    "EncryptFailures": "a key's policy speaks of that key only",
    "ReadSchemaVersions": "Glue asks for a schema's version by UUID, which has no ARN; it is read only",
}
"""Reasons for statements with a `*` that does not end a path."""
TOPIC = f"{PREFIX}.public.film"
CONFIG = Config(
    lake=LakeConfig(root=f"arn:aws:s3:::{LAKE}"),
    defaults=TableConfig(
        storage=(StorageConfig(), StorageConfig(format="hudi", type="mor"), StorageConfig(format="iceberg"))
    ),
)
DELTA, HUDI, ICEBERG = lake_of(CONFIG).silver(TOPIC)
BRONZE, GOLD = lake_of(CONFIG).path("bronze", TOPIC), lake_of(CONFIG).path("gold", "film_revenue")
ROOT = CONFIG.lake.root
PART, LOG = "part-00000.snappy.parquet", "_delta_log/00000000000000000001.json"
DATA = {
    "bronze": f"{BRONZE}/{PART}",
    "silver": f"{DELTA.path}/{PART}",
    "side": f"{DELTA.side}/{PART}",
    "silver in Hudi": f"{HUDI.path}/{PART}",
    "side of it": f"{HUDI.side}/{PART}",
    "silver in Iceberg": f"{ICEBERG.path}/{PART}",
    "gold": f"{GOLD}/{PART}",
}
READS = {
    "bronze": {"bronze"},
    "silver": {"bronze", "silver", "side", "silver in Hudi", "side of it", "silver in Iceberg"},
    "gold": {"silver", "gold"},
    "maintain": set(DATA),
}
WRITES = {**READS, "silver": READS["silver"] - {"bronze"}, "gold": {"gold"}}
SWITCHES = ("msk", "hudi", "iceberg", "glue_registry")


def languages(layer: str, **holds: bool) -> Iterator[list[Statement]]:
    """The statements of each layer in each language."""
    holds = {**dict.fromkeys(SWITCHES, False), **holds}
    yield terraform_layer(layer, holds)
    yield stack(**holds).layer(layer)


def may(statements: list[Statement], action: str, resource: str) -> bool:
    return any(
        one["Effect"] == "Allow" and action in one["Action"] and any(fnmatchcase(resource, r) for r in listed(one))
        for one in statements
    )


def listed(statement: Statement) -> list[str]:
    found = statement["Resource"]
    return [found] if isinstance(found, str) else found


def normal(statements: list[Statement]) -> dict[str, Any]:
    """Statements by Sid, independent of order and notation."""
    return {one["Sid"]: {key: _sorted(value, key) for key, value in one.items()} for one in statements}


def _sorted(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _sorted(one) for name, one in value.items()}
    if isinstance(value, list) or key in ("Action", "Resource"):
        return sorted([value] if isinstance(value, str) else value)
    return value


def every_statement() -> Iterator[Statement]:
    for statements in terraform_policies().values():
        yield from statements
    for target in TARGETS:
        yield from (statement for _, statement in stack(target).statements())


def test_every_wildcard_statement_has_a_reason() -> None:
    assert complaints(every_statement(), REASONS) == []


def test_every_reason_is_needed() -> None:
    assert {one["Sid"] for one in every_statement() if list(wildcards(one))} == REASONS.keys()


@pytest.mark.parametrize(
    "change",
    [
        {"Action": ["s3:*"]},
        {"Action": "s3:Get*"},
        {"Action": ["s3:GetObject", "*"]},
        {"Resource": "*"},
        {"Resource": ["arn:aws:s3:::lake/bronze/*", "*"]},
        {"Resource": "arn:aws:s3:::*"},
        {"Resource": "arn:aws:s3:::lake/*"},
        {"Resource": "arn:aws:s3:::lake/*/_delta_log/*"},
        {"Resource": "arn:aws:iam::123456789012:role/*"},
        {"Resource": "arn:aws:glue:*:123456789012:table/pagila_silver/*"},
        {"Principal": "*"},
        {"Principal": {"AWS": ["*"]}},
        {"NotAction": ["iam:PassRole"]},
        {"Sid": ""},
        {"Effect": "allow"},
    ],
    ids=str,
)
def test_the_lint_refuses_a_bad_statement(change: Statement) -> None:
    good = {"Sid": "A", "Effect": "Allow", "Action": ["s3:GetObject"], "Resource": ["arn:aws:s3:::lake/bronze/*"]}

    assert complaints([good], {}) == []
    assert complaints([good | change], {}) != []
    assert complaints([good | change], {"A": " "}) != []


@pytest.mark.parametrize("holds", [*product((False, True), repeat=4)], ids=str)
@pytest.mark.parametrize("layer", LAYERS)
def test_both_languages_grant_a_layer_the_same(layer: str, holds: tuple[bool, ...]) -> None:
    terraform, cloudformation = languages(layer, **dict(zip(SWITCHES, holds, strict=True)))

    assert len(normal(terraform)) == len(terraform)
    assert normal(terraform) == normal(cloudformation)


@pytest.mark.parametrize("target", TARGETS)
def test_both_languages_grant_the_other_roles_the_same(target: str) -> None:
    policies, resources = terraform_policies(), stack(target).resources
    made = {
        "key": resources["Key"]["KeyPolicy"],
        "key_alarms": resources["AlarmsKey"]["KeyPolicy"],
        "bucket": resources["LakePolicy"]["PolicyDocument"],
        "topic": resources["TopicPolicy"]["PolicyDocument"],
        f"scheduler_{target}": resources["StartRuns"]["PolicyDocument"],
        "trust_scheduler": resources["SchedulerRole"]["AssumeRolePolicyDocument"],
        f"trust_layer_{target}": resources["GoldRole"]["AssumeRolePolicyDocument"],
    }
    if target == "ec2":
        for name, role in (("instance", resources["InstanceRole"]), ("service", resources["ServiceRole"])):
            made |= {name: role["Policies"][0]["PolicyDocument"], f"trust_{name}": role["AssumeRolePolicyDocument"]}

    for name, document in made.items():
        assert normal(policies[name]) == normal(document["Statement"]), name


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_may_access_only_the_tables_it_needs(layer: str) -> None:
    for statements in languages(layer):
        assert {what for what, file in DATA.items() if may(statements, "s3:GetObject", file)} == READS[layer]
        assert {what for what, file in DATA.items() if may(statements, "s3:PutObject", file)} == WRITES[layer]


@pytest.mark.parametrize("layer", LAYERS)
def test_only_maintenance_may_delete_data(layer: str) -> None:
    for statements in languages(layer):
        gone = {what for what, file in DATA.items() if may(statements, "s3:DeleteObject", file)}
        assert gone == (set(DATA) if layer == "maintain" else set())


def test_hudi_writers_may_delete_only_data_of_hudi_tables() -> None:
    asked = {layer: list(languages(layer, hudi=True)) for layer in LAYERS}
    gone = {
        layer: [{what for what, file in DATA.items() if may(one, "s3:DeleteObject", file)} for one in both]
        for layer, both in asked.items()
    }

    assert gone["bronze"] == [set()] * 2
    assert gone["silver"] == [{"silver", "silver in Hudi"}] * 2
    assert gone["gold"] == [{"gold"}] * 2


@pytest.mark.parametrize("holds", [True, False])
def test_iceberg_writers_may_delete_only_metadata(holds: bool) -> None:
    file = "_iceberg/00001-0f0f.metadata.json"
    tables = {"silver": [DELTA.path, ICEBERG.path], "gold": [GOLD], "bronze": []}

    for layer, folders in tables.items():
        for statements in languages(layer, iceberg=holds):
            assert [may(statements, "s3:DeleteObject", f"{folder}/{file}") for folder in folders] == [holds] * len(
                folders
            )
            assert not any(may(statements, "s3:DeleteObject", data) for data in DATA.values())


@pytest.mark.parametrize("holds", [True, False])
def test_gold_finds_and_maintenance_commits_iceberg_tables(holds: bool) -> None:
    arns = {name: f"arn:aws:glue:eu-central-1:123456789012:table/{PREFIX}_{name}/film" for name in ("silver", "gold")}

    for statements in languages("gold", iceberg=holds):
        assert may(statements, "glue:GetTable", arns["silver"]) == holds
        assert not may(statements, "glue:UpdateTable", arns["silver"])
    for statements in languages("maintain", iceberg=holds):
        for action in ("glue:GetTable", "glue:UpdateTable"):
            assert {may(statements, action, arn) for arn in arns.values()} == {holds}


@pytest.mark.parametrize(
    "layer, folders",
    [("bronze", [BRONZE]), ("silver", [DELTA.path, DELTA.side, HUDI.side]), ("gold", [GOLD]), ("maintain", [BRONZE])],
)
def test_writers_may_delete_expired_delta_logs(layer: str, folders: list[str]) -> None:
    for statements in languages(layer):
        assert all(may(statements, "s3:DeleteObject", f"{folder}/{LOG}") for folder in folders)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_may_take_and_release_only_its_own_leases(layer: str) -> None:
    leases = {
        "bronze": [lake_of(CONFIG).path("_leases/bronze", TOPIC)],
        "silver": [lake_of(CONFIG).path("_leases/silver", name) for name in (DELTA.name, HUDI.name)],
        "gold": [lake_of(CONFIG).path("_leases/gold", "film_revenue")],
    }
    own = leases.get(layer, [one for several in leases.values() for one in several])
    others = [one for several in leases.values() for one in several if one not in own]

    for statements in languages(layer):
        for action in ("s3:GetObject", "s3:PutObject", "s3:DeleteObject"):
            assert all(may(statements, action, f"{folder}/000000000001.json") for folder in own)
            assert not any(may(statements, action, f"{folder}/000000000001.json") for folder in others)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_writes_only_its_own_reports_and_deletes_none(layer: str) -> None:
    reports = {other: f"{ROOT}/_runs/{Report(layer=other).file_name}" for other in LAYERS}

    for statements in languages(layer):
        for action in ("s3:GetObject", "s3:PutObject"):
            assert {other for other, report in reports.items() if may(statements, action, report)} == {layer}
        assert not any(may(statements, "s3:DeleteObject", report) for report in reports.values())


def test_a_layer_reads_only_its_own_and_shared_secrets() -> None:
    readers = {"bronze": {"bronze"}, "gold": {"gold"}, "shared": {"bronze", "gold"}, "silver": set(), "": set()}
    asked = {layer: list(languages(layer)) for layer in LAYERS}

    for folder, expected in readers.items():
        secret = f"arn:aws:ssm:eu-central-1:123456789012:parameter/cdc-lake/secrets/{folder}/registry".replace(
            "//", "/"
        )
        for number in (0, 1):
            found = {layer for layer, both in asked.items() if may(both[number], "ssm:GetParameter", secret)}
            assert found == expected, secret


def test_bronze_writes_schemas_and_silver_reads_them() -> None:
    kept = [f"{ROOT}/_schemas/0f0f.avsc", f"{ROOT}/_schemas/ids/apicurio/content/1/0f0f"]
    asked = {layer: list(languages(layer)) for layer in LAYERS}
    for action, layers in {"s3:GetObject": {"bronze", "silver"}, "s3:PutObject": {"bronze"}}.items():
        for file in kept:
            assert {layer for layer, both in asked.items() for one in both if may(one, action, file)} == layers

    for statements in asked["bronze"]:
        assert not any(may(statements, "s3:DeleteObject", file) for file in kept)


def test_bronze_reads_topics_and_only_gold_and_dlq_are_written() -> None:
    dead_letters = f"{PREFIX}.dlq"
    topics = {
        TOPIC: {"bronze"},
        dead_letters: {"bronze"},
        "gold.film_revenue": {"gold"},
        "other.public.film": set(),
        "_connect_offsets": set(),
    }
    asked = {layer: list(languages(layer, msk=True)) for layer in LAYERS}
    for topic, layers in topics.items():
        arn = f"{MSK.replace(':cluster/', ':topic/')}/{topic}"
        describe = {layer for layer, both in asked.items() for s in both if may(s, "kafka-cluster:DescribeTopic", arn)}
        assert describe == layers
        assert all(may(s, "kafka-cluster:ReadData", arn) == ("bronze" in layers) for s in asked["bronze"])
        for write in ("kafka-cluster:WriteData", "kafka-cluster:CreateTopic"):
            assert all(may(s, write, arn) == ("gold" in layers) for s in asked["gold"])
            assert all(may(s, write, arn) == (topic == dead_letters) for s in asked["bronze"])
    for layer in ("silver", "maintain"):
        assert not any("kafka-cluster" in action for both in asked[layer] for one in both for action in one["Action"])


@pytest.mark.parametrize("layer", ["bronze", "silver", "gold"])
def test_a_layer_updates_only_its_own_catalog_tables(layer: str) -> None:
    for statements in languages(layer):
        for other in ("bronze", "silver", "gold"):
            table = f"arn:aws:glue:eu-central-1:123456789012:table/{PREFIX}_{other}/film"
            assert may(statements, "glue:UpdateTable", table) == (other == layer)
            assert not may(statements, "glue:DeleteTable", table)


def test_eventbridge_statements_have_no_condition() -> None:
    for target in TARGETS:
        told = [one for _, one in stack(target).statements() if "events.amazonaws.com" in str(one.get("Principal"))]
        assert {one["Sid"] for one in told} == {"EncryptFailures", "PublishFailures"}
        assert not any("Condition" in one for one in told)


def test_cluster_uses_tls_and_machines_read_only_certificates() -> None:
    resources = stack("ec2").resources
    encryption = resources["SecurityConfiguration"]["SecurityConfiguration"]["EncryptionConfiguration"]
    tls = encryption["InTransitEncryptionConfiguration"]["TLSCertificateConfiguration"]
    terraform = (TERRAFORM / "ec2.tf").read_text(encoding="utf-8")

    assert encryption["EnableInTransitEncryption"]
    assert tls == {"CertificateProviderType": "PEM", "S3Object": f"s3://{CERTIFICATES}"}
    assert "EnableInTransitEncryption = true" in terraform
    assert 'CertificateProviderType = "PEM", S3Object = "s3://${var.cluster_certificates}"' in terraform
    for statements in (
        terraform_policies()["instance"],
        resources["InstanceRole"]["Policies"][0]["PolicyDocument"]["Statement"],
    ):
        assert may(statements, "s3:GetObject", f"arn:aws:s3:::{CERTIFICATES}")
        assert not may(statements, "s3:GetObject", "arn:aws:s3:::acme-certificates/other.zip")
