"""`cdc-lake init` writes a project that cdc_lake can load, and `cdc-lake config` says where each setting comes from."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from support import CHECKOUT
from support.one_server import serving
from support.registry_server import FakeServer

from cdc_lake.cli.app import EXTRAS, execute
from cdc_lake.config import Config, config_path, load_config
from cdc_lake.config.gold_models import read_model
from cdc_lake.errors import ConfigError, InstallationError
from cdc_lake.operations.new_project import Project, Servers, suggested_tables
from cdc_lake.runs.context import matching

pytestmark = pytest.mark.core

NOWHERE = ("--brokers", "127.0.0.1:1", "--registry", "http://127.0.0.1:1")


@pytest.fixture(autouse=True)
def in_an_empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CDC_LAKE_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> int:
    try:
        execute(*arguments)
    except SystemExit as exit:
        return int(exit.code or 0)
    return 0


def project(**changes: Any) -> Project:
    servers = Servers("broker:9092", "http://registry:8081")
    known = {"registry_type": "confluent", "lake": "s3://bucket/lake", "tables": ["shop.public.*"]}
    return Project(servers, **{**known, "example": "shop.public.orders", **changes})


def test_written_settings_are_those_of_the_answers(tmp_path: Path) -> None:
    written = dict(project().write(tmp_path))

    config = load_config()
    assert set(written) == {"cdc-lake.yml", "gold/row_count.sql", ".gitignore", "README.md", "crontab"}
    assert all((tmp_path / name).is_file() for name in written)
    assert config.kafka.bootstrap_servers == "broker:9092"
    assert (config.registry.type, config.registry.url) == ("confluent", "http://registry:8081")
    assert config.lake.root == "s3://bucket/lake"
    assert "$" not in (tmp_path / "cdc-lake.yml").read_text()
    model = read_model(Path(config.gold.models) / "row_count.sql")
    assert list(model.header.topics.values()) == ["shop.public.orders"]


def test_commented_settings_are_valid_if_uncommented(tmp_path: Path) -> None:
    list(project().write(tmp_path))
    file = tmp_path / "cdc-lake.yml"
    file.write_text(re.sub(r"^( *)# ( *[\w.*-]+:(?: .*)?)$", r"\1\2", file.read_text(), flags=re.MULTILINE))

    config = load_config()

    assert config.kafka.auth == "scram_sha_512"
    assert config.registry.auth is not None
    assert config.databases["shop"].url == "env:SHOP_URL"
    assert config.table("shop.public.orders").deletes.mode == "hard"


@pytest.mark.parametrize("lake", ["lake: data", "*.dir", "'quoted'", "#1"])
def test_answers_that_look_like_yaml_stay_texts(tmp_path: Path, lake: str) -> None:
    list(project(lake=lake).write(tmp_path))

    assert Path(load_config().lake.root) == tmp_path / lake


def test_files_of_the_user_are_kept(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")

    written = dict(project().write(tmp_path))

    assert written["README.md"] is False
    assert (tmp_path / "README.md").read_text() == "mine"


def test_init_does_not_replace_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cdc-lake.yml").write_text("")

    assert run("init", *NOWHERE, "--table", "t") == 2
    assert "cdc-lake.yml: it exists already" in capsys.readouterr().err
    assert (tmp_path / "cdc-lake.yml").read_text() == ""


def test_init_writes_a_project_although_no_server_responds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("init", "new", *NOWHERE, "--table", "shop.public.*") == 0

    printed = capsys.readouterr()
    assert printed.err.count("warning: ") == 2
    assert "Next: cd new && cdc-lake doctor --table 'shop.public.*'" in printed.out
    assert not (tmp_path / "new/gold").exists()  # no topic is known
    assert load_config(tmp_path / "new/cdc-lake.yml").registry.type == "apicurio"


def test_init_without_terminal_names_the_missing_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("init") == 2
    assert "--brokers is missing" in capsys.readouterr().err


def test_init_refuses_an_address_before_it_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("init", "--brokers", "kafka://broker", "--registry", "http://r:1", "--table", "t") == 2
    assert "`kafka.bootstrap_servers`: write `host:port`" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_registry_type_is_that_of_the_server_that_answers() -> None:
    for path, kind in (("/schemas/types", "confluent"), ("/apis/registry/v2/search/artifacts?limit=1", "apicurio")):
        with serving(FakeServer()) as server:
            server.answers[path] = [(200, "{}")]
            assert Servers("b:1", server.url).registry_type() == kind


def test_globs_of_topics_begin_with_the_schema_of_most() -> None:
    topics = ["connect-offsets", "crm.sales.lead", "shop.public.items", "shop.public.orders"]

    assert suggested_tables(topics) == ["shop.public.*", "crm.sales.*"]
    assert matching(topics, ["shop.*", "none"]) == topics[2:]


def test_origin_of_a_setting_is_a_line_a_variable_or_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cdc-lake.yml").write_text(
        "kafka:\n  bootstrap_servers: file:1\n  timeout_seconds: 3\ntables:\n  a.b.*:\n    deletes: {mode: hard}\n"
    )
    monkeypatch.setenv("CDC_LAKE__KAFKA__BOOTSTRAP_SERVERS", "env:1")
    monkeypatch.setenv("COLUMNS", "200")

    assert run("config", "show", "--origin") == 0

    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["kafka.bootstrap_servers", '"env:1"', "CDC_LAKE__KAFKA__BOOTSTRAP_SERVERS"] in rows
    assert ["kafka.timeout_seconds", "3.0", "cdc-lake.yml:3"] in rows
    assert ["tables.a.b.*.deletes.mode", '"hard"', "cdc-lake.yml:6"] in rows
    assert ["registry.type", '"apicurio"', "default"] in rows


def test_settings_can_be_printed_and_loaded_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cdc-lake.yml").write_text("lake: {root: data}\ntables: {a.b.c: {deletes: {mode: hard}}}\n")
    before = load_config()

    assert run("config", "show") == 0
    (tmp_path / "cdc-lake.yml").write_text(capsys.readouterr().out)

    assert load_config() == before


def test_schema_of_the_settings_names_every_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("config", "schema") == 0
    assert set(json.loads(capsys.readouterr().out)["properties"]) == set(Config.model_fields)


def test_configuration_file_is_the_nearest_one_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conf").mkdir()
    for name in ("cdc-lake.yml", "conf/cdc-lake.yml"):
        (tmp_path / name).touch()
    below = tmp_path / "gold" / "drafts"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)

    assert config_path() == tmp_path / "cdc-lake.yml"


def test_variables_suffice_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_LAKE__KAFKA__BOOTSTRAP_SERVERS", "env:1")

    config = load_config()

    assert config_path() is None
    assert config.kafka.address == "env:1"
    assert config.lake.root == str(tmp_path / ".cdc_lake/lake")


def test_servers_that_nobody_named_are_an_error_that_names_init() -> None:
    with pytest.raises(ConfigError, match="or write the addresses of your servers with `cdc-lake init`"):
        _ = load_config().kafka.address


def test_lake_is_by_default_in_the_folder_of_the_settings(tmp_path: Path) -> None:
    (tmp_path / "cdc-lake.yml").touch()

    assert load_config().lake.root == str(tmp_path / ".cdc_lake/lake")
    assert load_config().stack.folder == str(tmp_path / ".cdc_lake/stack")


@pytest.mark.parametrize("module", EXTRAS)
def test_missing_package_error_names_an_extra_that_has_it(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise ModuleNotFoundError(name=module)

    monkeypatch.setattr("cdc_lake.cli.app.app", fail)

    assert run("status") == InstallationError.exit_code
    extra = re.search(r"pip install 'cdc-lake\[(\w+)\]'", capsys.readouterr().err)
    assert extra
    declared = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    packages = [*declared[extra[1]], *(declared["servers"] if extra[1] == "demo" else [])]
    names = {re.split(r"[\[>=]", package)[0].replace("-", "_") for package in packages}
    assert {"delta": "delta_spark", "py4j": "pyspark", "vl_convert": "vl_convert_python"}.get(module, module) in names


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    declared = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"]

    assert run("--version") == 0
    assert capsys.readouterr().out == f"cdc-lake {declared}\n"


def test_jobs_path_is_the_folder_of_the_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("jobs", "path") == 0
    folder = Path(capsys.readouterr().out.strip())
    assert {file.name for file in folder.glob("*.py")} == {"bronze.py", "silver.py", "gold.py", "maintain.py"}
