"""A package contains the jobs and the configuration, and no secrets from their folders."""

from pathlib import Path

import pytest
from support import CHECKOUT

from cdc_lake.errors import ConfigError
from cdc_lake.packaging import copy_sources

pytestmark = pytest.mark.core

BELONG = (
    "conf/cdc-lake.yml",
    "conf/gold/film.sql",
    "conf/gold/stores.csv",
    "conf/schemas/t-key.avsc",
    "jobs/bronze.py",
)
SECRETS = (
    "conf/.env",
    "conf/.secrets/prod.yml",
    "conf/.yml",
    "conf/credentials.json",
    "conf/gold/notes.txt",
    "conf/registry.key",
    "conf/registry.pem",
    "conf/token",
    "jobs/.env",
    "jobs/id_rsa",
)
UNMENTIONED = ("conf/jars/emr7.lock", "jobs/__pycache__/bronze.cpython-311.pyc")


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_secrets_are_excluded_and_listed(tmp_path: Path) -> None:
    for name in (*BELONG, *SECRETS, *UNMENTIONED):
        (tmp_path / "checkout" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "checkout" / name).write_text("s3cret")

    left_out = copy_sources(tmp_path / "checkout", tmp_path / "package")

    assert names(tmp_path / "package") == set(BELONG)
    assert sorted(left_out) == sorted(SECRETS)


def test_all_sources_of_this_checkout_are_packaged(tmp_path: Path) -> None:
    assert copy_sources(CHECKOUT, tmp_path) == {}
    assert names(tmp_path) >= {"conf/cdc-lake.yml", "conf/gold/stores.csv", "jobs/gold.py"}


def test_files_that_settings_reference_as_secrets_are_excluded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = {
        "conf/cdc-lake.yml": 'kafka: {password: "file:pw.csv", tls: {cert: client.csv, key: keys/client.csv}}\n',
        "conf/envs/prod.yaml": "auth: {bearer: {token: file:../token.sql}}\n---\nmore: !of [file:more.csv]\n",
        "conf/.local.yml": "kafka: {kerberos: {keytab: lake.csv}}\n",
    }
    secrets = ("pw.csv", "client.csv", "keys/client.csv", "token.sql", "envs/more.csv", "lake.csv", "from_env.csv")
    for name in (*BELONG, *(f"conf/{secret}" for secret in secrets)):
        (tmp_path / "checkout" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "checkout" / name).write_text("s3cret")
    for name, text in written.items():
        (tmp_path / "checkout" / name).write_text(text)
    monkeypatch.setenv("CDC_LAKE__KAFKA__CONNECTION_STRING", "file:from_env.csv")

    skipped = copy_sources(tmp_path / "checkout", tmp_path / "package")

    assert names(tmp_path / "package") == {*BELONG, "conf/envs/prod.yaml"}
    assert set(skipped) == {"conf/.local.yml", *(f"conf/{secret}" for secret in secrets)}
    assert skipped["conf/pw.csv"] == "a setting references it as a secret"


def test_links_in_a_checkout_are_not_followed(tmp_path: Path) -> None:
    checkout, outside = tmp_path / "checkout", tmp_path / "outside"
    for file in (checkout / "jobs/bronze.py", checkout / "conf/.env", outside / "models/film.sql", outside / "own.yml"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("s3cret")
    (checkout / "conf/own.yml").symlink_to(outside / "own.yml")
    (checkout / "conf/inside.yml").symlink_to(checkout / "conf/.env")
    (checkout / "conf/gone.yml").symlink_to(outside / "gone.yml")
    (checkout / "conf/gold").symlink_to(outside / "models")

    skipped = copy_sources(checkout, tmp_path / "package")

    assert names(tmp_path / "package") == {"jobs/bronze.py"}
    assert set(skipped) == {"conf/.env", "conf/gold", "conf/gone.yml", "conf/inside.yml", "conf/own.yml"}
    assert "link" in skipped["conf/gold"]


def test_package_of_a_broken_settings_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "conf/cdc-lake.yml"
    file.parent.mkdir()
    file.write_text("kafka: {password: hunter2")

    with pytest.raises(ConfigError, match=r"cdc-lake\.yml: this is not YAML") as caught:
        copy_sources(tmp_path, tmp_path / "package")

    assert "hunter2" not in str(caught.value)
