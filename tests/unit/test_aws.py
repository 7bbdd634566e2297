"""Settings and secrets in AWS, with moto."""

import os
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from cdc_lake.aws import client, translated
from cdc_lake.config import load_config, secret
from cdc_lake.errors import CdcLakeError, ConfigError, InfrastructureError, InstallationError

pytestmark = pytest.mark.core

CANARY = "canary-41bd"


@pytest.fixture(autouse=True)
def surroundings(aws_of_nobody: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A working directory, and invalid credentials for an AWS inside this process."""
    monkeypatch.delenv("CDC_LAKE_CONFIG", raising=False)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    monkeypatch.chdir(tmp_path)
    with mock_aws():
        yield


def stored(text: str, name: str = "/lake/config", kind: str = "SecureString") -> str:
    boto3.client("ssm").put_parameter(Name=name, Value=text, Type=kind)
    return f"ssm:{name}"


def managed(text: str | bytes) -> str:
    kind = "SecretString" if isinstance(text, str) else "SecretBinary"
    boto3.client("secretsmanager").create_secret(Name="lake/registry", **{kind: text})
    return "secretsmanager:lake/registry"


@pytest.mark.parametrize("kind", ["String", "SecureString"])
def test_settings_are_read_from_a_parameter(kind: str, tmp_path: Path) -> None:
    name = stored("lake: {root: 's3://b/lake'}\nregistry: {attempts: 9, tls: {ca: ca.pem}}", kind=kind)

    config = load_config(name)

    assert (config.lake.root, config.registry.attempts) == ("s3://b/lake", 9)
    assert config.gold.models == str(tmp_path / "conf" / "gold")
    assert config.registry.tls.ca == str(tmp_path / "conf" / "ca.pem")


def test_environment_variable_can_name_the_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_LAKE_CONFIG", stored("lake: {root: 's3://b/lake'}"))
    monkeypatch.setenv("CDC_LAKE__REGISTRY__ATTEMPTS", "7")

    assert (load_config().lake.root, load_config().registry.attempts) == ("s3://b/lake", 7)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lake: {root: here}", "cannot use a local `lake.root`"),
        ("run: {parallel: 2}", "cannot use a local `lake.root`"),
        ("lake: {roots: 's3://b'}", "`lake.roots` is not a known key (did you mean `root`?)"),
        ("- a", "is not a mapping of keys to values"),
        ("a: [", "this is not YAML"),
    ],
)
def test_invalid_parameter_content_is_a_config_error(text: str, said: str) -> None:
    name = stored(text)

    with pytest.raises(ConfigError) as caught:
        load_config(name)

    assert str(caught.value).startswith("ssm:/lake/config: ")
    assert said in str(caught.value)


def test_missing_parameter_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"ssm:/nowhere: it does not exist; check its name and the region"):
        load_config("ssm:/nowhere")


def test_secrets_are_read_from_ssm_and_secrets_manager() -> None:
    parameter, whole = (
        stored(f"{CANARY}\n", "/lake/password"),
        managed(f'{{"user": "u", "password": "{CANARY}", "n": 5}}'),
    )

    assert secret(parameter).get_secret_value() == CANARY
    assert secret(f"{whole}#password").get_secret_value() == CANARY
    assert secret(f"{whole}#n").get_secret_value() == "5"
    assert secret(whole).get_secret_value().startswith("{")
    arn = boto3.client("secretsmanager").describe_secret(SecretId="lake/registry")["ARN"]
    assert secret(f"secretsmanager:{arn}#user").get_secret_value() == "u"


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        (f'{{"password": "{CANARY}"}}', "#pasword", "the secret is not a JSON object with the key `pasword`"),
        (CANARY, "#password", "the secret is not a JSON object with the key `password`"),
        (f'["{CANARY}"]', "#password", "the secret is not a JSON object with the key `password`"),
        (CANARY.encode(), "", "the secret is binary"),
    ],
)
def test_malformed_secret_is_an_error_that_does_not_show_it(text: str | bytes, key: str, said: str) -> None:
    place = managed(text)

    with pytest.raises(ConfigError) as caught:
        secret(f"{place}{key}")

    assert f"secretsmanager:lake/registry{key}: {said}" in str(caught.value)
    error: BaseException | None = caught.value
    while error:
        assert CANARY not in str(error)
        error = error.__cause__


def test_ssm_and_secretsmanager_references_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "cdc-lake.yml"
    file.write_text(
        "registry: {auth: {basic: {user: u, password: 'secretsmanager:lake/registry#password'}}, proxy: 'ssm:/proxy'}"
    )

    registry = load_config(file).registry

    assert registry.auth is not None
    assert registry.auth.basic is not None
    assert (registry.auth.basic.password, registry.proxy) == ("secretsmanager:lake/registry#password", "ssm:/proxy")


def test_missing_region_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")

    with pytest.raises(ConfigError, match="no AWS region is set; set AWS_DEFAULT_REGION"):
        load_config("ssm:/lake/config")


def test_unresponsive_aws_is_an_infrastructure_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")

    with pytest.raises(
        InfrastructureError, match=r"ssm:/lake/config: AWS does not respond \(EndpointConnectionError\)"
    ):
        load_config("ssm:/lake/config")


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("AccessDeniedException", ConfigError),
        ("ExpiredTokenException", ConfigError),
        ("InvalidRequestException", ConfigError),
        ("ResourceNotFoundException", ConfigError),
        ("ThrottlingException", InfrastructureError),
        ("InternalServerError", InfrastructureError),
    ],
)
def test_aws_error_codes_map_to_error_classes(code: str, wanted: type[CdcLakeError]) -> None:
    with pytest.raises(CdcLakeError, match=r"^here: ") as caught, translated("here"):
        raise ClientError({"Error": {"Code": code, "Message": "because"}}, "Ask")

    assert type(caught.value) is wanted


@pytest.mark.parametrize("status", [401, 403])
def test_refusal_by_status_alone_is_not_retried(status: int) -> None:
    """The code of a response without a body, as to HEAD, is the status."""
    answer = {"Error": {"Code": str(status), "Message": ""}, "ResponseMetadata": {"HTTPStatusCode": status}}

    with pytest.raises(ConfigError, match="AWS rejects the credentials"), translated("here"):
        raise ClientError(answer, "HeadObject")  # type: ignore[arg-type]


def test_invalid_request_is_an_internal_error() -> None:
    with pytest.raises(CdcLakeError, match="this is a bug in cdc_lake") as caught, translated("here"):
        client("ssm").get_parameter(Nam="x")

    assert type(caught.value) is CdcLakeError


def test_missing_credentials_are_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_") and "KEY" in name]:
        monkeypatch.delenv(name)

    with pytest.raises(ConfigError, match=r"ssm:/lake/config: there are no credentials \(NoCredentialsError\)"):
        load_config("ssm:/lake/config")


def test_missing_boto3_names_the_extra(without_boto3: None) -> None:
    with pytest.raises(InstallationError, match=r"cdc-lake\[aws\]"):
        load_config("ssm:/lake/config")
