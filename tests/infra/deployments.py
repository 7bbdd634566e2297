"""infra/ as data: Terraform's files filled in, CloudFormation's template resolved, both for the same account."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

import hcl2
import yaml
from cfnlint.decode import decode

INFRA = Path(__file__).parents[2] / "infra"
TERRAFORM = INFRA / "terraform"
TEMPLATE = INFRA / "cloudformation" / "cdc-lake.yml"
LAYERS = ("bronze", "silver", "gold", "maintain")
TARGETS = ("serverless", "ec2")

ACCOUNT, REGION, LAKE, PREFIX = "123456789012", "eu-central-1", "acme-lake", "pagila"
CERTIFICATES = "acme-certificates/certificates.zip"
MSK = f"arn:aws:kafka:{REGION}:{ACCOUNT}:cluster/acme/0f0f-1"
KEY = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/acme"
APPLICATION = f"arn:aws:emr-serverless:{REGION}:{ACCOUNT}:/applications/app-1"
CLUSTER = f"arn:aws:elasticmapreduce:{REGION}:{ACCOUNT}:cluster/j-1"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/cdc-lake-"
GIVEN = {
    "LakeBucket": LAKE,
    "VpcId": "vpc-1",
    "SubnetIds": ["subnet-1", "subnet-2"],
    "KafkaBootstrapServers": "b-1.acme:9092,b-2.acme:9092",
    "RegistryUrl": "https://registry.acme.example",
    "Settings": "defaults: {deletes: {mode: hard}}",
}
"""Parameters without a default."""

Statement = dict[str, Any]


def names() -> dict[str, str]:
    """The values that names.tf passes to the templates in policies/."""
    return {
        "partition": "aws",
        "account": ACCOUNT,
        "region": REGION,
        "prefix": PREFIX,
        "lake": f"arn:aws:s3:::{LAKE}",
        "artifacts": f"arn:aws:s3:::{LAKE}-artifacts",
        "logs": f"arn:aws:s3:::{LAKE}-logs",
        "bucket": f"arn:aws:s3:::{LAKE}",
        "parameter": f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter/cdc-lake/config",
        "secrets": f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter/cdc-lake/secrets",
        "glue": f"arn:aws:glue:{REGION}:{ACCOUNT}",
        "certificates": f"arn:aws:s3:::{CERTIFICATES}",
        "topic": f"arn:aws:sns:{REGION}:{ACCOUNT}:cdc-lake-alarms",
        "msk": MSK,
        "topics": MSK.replace(":cluster/", ":topic/"),
        "groups": MSK.replace(":cluster/", ":group/"),
        "instance_role": f"{ROLE}emr-instance",
        "layer_roles": json.dumps([f"{ROLE}{layer}" for layer in LAYERS]),
        "key": KEY,
        "application": APPLICATION,
        "cluster": CLUSTER,
    }


def terraform_policies() -> dict[str, list[Statement]]:
    """The statements of each file in policies/, `When` included."""
    found = {}
    for file in sorted((TERRAFORM / "policies").glob("*.yml")):
        found[file.stem] = yaml.safe_load(Template(file.read_text(encoding="utf-8")).substitute(names()))
    return found


def terraform_layer(layer: str, holds: Mapping[str, bool]) -> list[Statement]:
    """A layer's statements in Terraform, as roles.tf combines them.

    Args:
        holds: whether each `When` is true.
    """
    policies = terraform_policies()
    statements = [*policies["common"], *policies[layer]]
    kept = (one for one in statements if holds.get(one.get("When", ""), True))
    return [{key: value for key, value in one.items() if key != "When"} for one in kept]


def terraform_files() -> dict[str, dict[str, Any]]:
    """The parsed tree of each .tf file."""
    return {file.name: _unquoted(hcl2.loads(file.read_text("utf-8"))) for file in sorted(TERRAFORM.glob("*.tf"))}


def terraform_blocks(kind: str) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """The labels and the content of all blocks of one kind, such as `resource`."""
    labels = {"resource": 2, "data": 2, "variable": 1, "output": 1, "provider": 1}[kind]
    for tree in terraform_files().values():
        for block in tree.get(kind, ()):
            path: tuple[str, ...] = ()
            for _ in range(labels):
                (label,) = (name for name in block if not name.startswith("__"))
                path, block = (*path, label), block[label]
            yield path, block


def terraform_defaults() -> dict[str, Any]:
    """The defaults of variables."""
    return {name: block["default"] for (name,), block in terraform_blocks("variable") if "default" in block}


def filled(file: str, /, **values: str) -> str:
    """A Terraform file with its `${…}` filled in."""
    return Template((TERRAFORM / file).read_text(encoding="utf-8")).substitute(values)


def _unquoted(tree: Any) -> Any:
    """Without the quotes that the parser keeps around literal texts."""
    if isinstance(tree, dict):
        return {_unquoted(key): _unquoted(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_unquoted(one) for one in tree]
    if isinstance(tree, str) and len(tree) > 1 and tree[0] == tree[-1] == '"':
        return tree[1:-1]
    return tree


class Stack:
    """CloudFormation's template for one choice of parameters: its resources, with all functions resolved."""

    def __init__(self, **parameters: Any) -> None:
        self.template, problems = decode(str(TEMPLATE))
        assert not problems
        declared = self.template["Parameters"]
        defaults = {name: one["Default"] for name, one in declared.items() if "Default" in one}
        asked = {**defaults, **GIVEN, "ClusterCertificates": CERTIFICATES, **parameters}
        self._parameters = {
            name: value.split(",") if declared[name]["Type"] == "CommaDelimitedList" else value
            for name, value in asked.items()
        }
        self.resources = {
            name: self.resolved(one["Properties"])
            for name, one in self.template["Resources"].items()
            if "Condition" not in one or self._holds(one["Condition"])
        }

    def of_type(self, kind: str) -> dict[str, Any]:
        """The properties of the resources of a type, by their logical names."""
        resources = self.template["Resources"]
        return {name: one for name, one in self.resources.items() if resources[name]["Type"] == kind}

    def layer(self, layer: str) -> list[Statement]:
        """A layer's statements in CloudFormation."""
        role = self.resources[f"{layer.capitalize()}Role"]
        assert role["ManagedPolicyArns"] == ["CommonPolicy"]
        common = self.resources["CommonPolicy"]["PolicyDocument"]["Statement"]
        (own,) = role["Policies"]
        return [*common, *own["PolicyDocument"]["Statement"]]

    def statements(self) -> Iterator[tuple[str, Statement]]:
        """All statements, each with its resource's logical name."""
        for name, properties in self.resources.items():
            yield from ((name, one) for one in _statements(properties))

    def resolved(self, value: Any) -> Any:
        """A value without functions."""
        if isinstance(value, Mapping):
            if len(value) == 1:
                ((name, argument),) = value.items()
                if name == "Ref" or name.startswith("Fn::"):
                    return getattr(self, f"_{name.removeprefix('Fn::').lower()}")(argument)
            return {str(key): self.resolved(one) for key, one in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, str):
            return [found for one in value if (found := self.resolved(one)) != "AWS::NoValue"]
        return value

    def _ref(self, name: str) -> Any:
        known = {"AWS::AccountId": ACCOUNT, "AWS::Region": REGION, "AWS::Partition": "aws", "AWS::NoValue": name}
        if name in known or name in self._parameters:
            return {**self._parameters, **known}[name]
        named = {"Lake": LAKE, "Artifacts": f"{LAKE}-artifacts", "Logs": f"{LAKE}-logs"}
        assert name in self.template["Resources"], name
        return {**named, "Cluster": "j-1", "Application": "app-1"}.get(name, name)

    def _getatt(self, path: Any) -> str:
        name, attribute = path.split(".") if isinstance(path, str) else path
        resource = self.template["Resources"][name]
        if attribute == "Arn" and resource["Type"] == "AWS::S3::Bucket":
            return f"arn:aws:s3:::{self._ref(name)}"
        if attribute == "Arn" and resource["Type"] == "AWS::IAM::Role":
            return f"arn:aws:iam::{ACCOUNT}:role/{self.resolved(resource['Properties']['RoleName'])}"
        return {"Key": KEY, "Application": APPLICATION}.get(name, f"{name}.{attribute}")

    def _sub(self, argument: Any) -> str:
        text, values = (argument, {}) if isinstance(argument, str) else argument
        values = {name: self.resolved(one) for name, one in values.items()}

        def value(found: re.Match[str]) -> str:
            name = found[1]
            return str(values[name] if name in values else self._getatt(name) if "." in name else self._ref(name))

        return re.sub(r"\$\{([\w.:]+)\}", value, text)

    def _join(self, argument: Any) -> str:
        return str(argument[0]).join(self.resolved(argument[1]))

    def _split(self, argument: Any) -> list[str]:
        return str(self.resolved(argument[1])).split(argument[0])

    def _select(self, argument: Any) -> Any:
        return self.resolved(argument[1])[int(argument[0])]

    def _if(self, argument: Any) -> Any:
        return self.resolved(argument[1] if self._holds(argument[0]) else argument[2])

    def _holds(self, condition: str) -> bool:
        return bool(self.resolved(self.template["Conditions"][condition]))

    def _equals(self, argument: Any) -> bool:
        one, other = map(self.resolved, argument)
        return bool(one == other)

    def _not(self, argument: Any) -> bool:
        return not self.resolved(argument[0])

    def _or(self, argument: Any) -> bool:
        return any(self._holds(one["Condition"]) for one in argument)


def stack(
    target: str = "serverless", *, msk: bool = True, hudi: bool = True, iceberg: bool = True, glue_registry: bool = True
) -> Stack:
    """The template with the same switches as `holds` of names.tf."""
    return Stack(
        Target=target,
        MskClusterArn=MSK if msk else "",
        Hudi="true" if hudi else "false",
        Iceberg="true" if iceberg else "false",
        RegistryType="glue" if glue_registry else "apicurio",
    )


def _statements(tree: Any) -> Iterator[Statement]:
    if isinstance(tree, dict):
        if isinstance(tree.get("Statement"), list):
            yield from tree["Statement"]
        for value in tree.values():
            yield from _statements(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _statements(value)
