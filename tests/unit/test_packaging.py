"""A package contains the jobs and the configuration, and no secrets from their folders."""

from pathlib import Path

import pytest

from cdc_lake.config import CHECKOUT
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
    assert copy_sources(CHECKOUT, tmp_path) == []
    assert names(tmp_path) >= {"conf/cdc-lake.yml", "conf/gold/stores.csv", "jobs/gold.py"}
