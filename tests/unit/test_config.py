"""What a run is told: from flags' file, from the environment, by default; and what a wrong setting's error says."""

import json
from pathlib import Path

import pytest

from cdc_lake.config import config_path, kafka_address, load_config, registry_address
from cdc_lake.errors import ConfigError


@pytest.fixture(autouse=True)
def no_settings_of_the_developer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither a variable nor a conf/ folder of whoever runs the tests counts."""
    for name in ("CDC_LAKE_CONFIG", "CDC_LAKE__KAFKA__BOOTSTRAP_SERVERS", "CDC_LAKE__REGISTRY__ATTEMPTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def written(folder: Path, text: str) -> Path:
    file = folder / "cdc-lake.yml"
    file.write_text(text, encoding="utf-8")
    return file


def refused(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(written(folder, text))
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_an_empty_file_means_the_defaults(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, ""))

    assert config.table("any.table.at_all").deletes == "soft"
    assert config.registry.ids == "content"


def test_the_environment_wins_over_the_file_and_leaves_its_neighbours_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDC_LAKE__KAFKA__BOOTSTRAP_SERVERS", "env:1")
    file = written(tmp_path, "kafka: {bootstrap_servers: 'file:1', timeout_seconds: 3}\nregistry: {attempts: 9}")

    config = load_config(file)

    assert config.kafka.bootstrap_servers == "env:1"
    assert config.kafka.timeout_seconds == 3
    assert config.registry.attempts == 9


def test_the_environment_names_the_file_and_an_argument_wins_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_variable = written(tmp_path, "registry: {attempts: 2}")
    (tmp_path / "other").mkdir()
    by_argument = written(tmp_path / "other", "registry: {attempts: 3}")
    monkeypatch.setenv("CDC_LAKE_CONFIG", str(by_variable))

    assert load_config().registry.attempts == 2
    assert load_config(by_argument).registry.attempts == 3


def test_the_file_in_the_working_directory_is_found(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    file = written(tmp_path / "conf", "")

    assert config_path() == file.resolve()


def test_the_folder_of_the_gold_models_is_beside_the_file_unless_it_says_where(tmp_path: Path) -> None:
    assert load_config(written(tmp_path, "")).gold.models == str(tmp_path / "gold")
    assert load_config(written(tmp_path, "gold: {models: ../sql}")).gold.models == str(tmp_path.parent / "sql")


def test_a_file_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yml: there is no such configuration file"):
        load_config(tmp_path / "nowhere.yml")


def test_an_unknown_key_is_named_with_the_file_and_the_nearest_known_key(tmp_path: Path) -> None:
    said = refused(tmp_path, "kafka: {bootstrap_server: 'b:1'}")

    assert "cdc-lake.yml: `kafka.bootstrap_server` is not a known key (did you mean `bootstrap_servers`?)" in said


def test_an_unknown_key_of_the_first_level_is_named(tmp_path: Path) -> None:
    assert "`kafk` is not a known key (did you mean `kafka`?)" in refused(tmp_path, "kafk: {}")


def test_an_unknown_key_of_a_table_is_named(tmp_path: Path) -> None:
    said = refused(tmp_path, "tables: {'a.b.c': {delete: hard}}")

    assert "`tables.a.b.c.delete` is not a known key (did you mean `deletes`?)" in said


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("defaults: {deletes: maybe}", "`defaults.deletes`"),
        ("defaults: {max_rows: 0}", "`defaults.max_rows`"),
        ("defaults: {max_quarantine_percent: 101}", "`defaults.max_quarantine_percent`"),
        ("registry: {ids: global_id}", "`registry.ids`"),
        ("registry: {attempts: many}", "`registry.attempts`"),
    ],
)
def test_a_wrong_value_names_its_key(tmp_path: Path, text: str, key: str) -> None:
    assert key in refused(tmp_path, text)


def test_a_wrong_value_in_the_environment_is_a_configuration_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDC_LAKE__REGISTRY__ATTEMPTS", "none")

    assert "`registry.attempts`" in refused(tmp_path, "")


def test_a_file_that_is_not_yaml_is_refused(tmp_path: Path) -> None:
    assert "this is not YAML" in refused(tmp_path, "kafka: [")


def test_a_file_that_holds_no_keys_is_refused(tmp_path: Path) -> None:
    assert "must hold keys and values" in refused(tmp_path, "- kafka")


def test_an_embedded_address_without_a_stack_says_how_to_start_one(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, "stack: {folder: nothing}"))

    with pytest.raises(ConfigError, match=r"kafka: embedded: .*stack up"):
        kafka_address(config)
    with pytest.raises(ConfigError, match=r"registry: embedded: .*stack up"):
        registry_address(config)


def test_an_embedded_address_is_looked_up_where_the_stack_wrote_it(tmp_path: Path) -> None:
    (tmp_path / "stack").mkdir()
    addresses = {"kafka": "127.0.0.1:9", "registry": "http://127.0.0.1:8/"}
    (tmp_path / "stack" / "endpoints.json").write_text(json.dumps(addresses))
    config = load_config(written(tmp_path, "stack: {folder: stack}"))

    assert kafka_address(config) == "127.0.0.1:9"
    assert registry_address(config) == "http://127.0.0.1:8"


def test_relative_paths_start_at_the_file_s_folder(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    config = load_config(written(tmp_path / "conf", "lake: {root: ../lake}\nstack: {folder: s}"))

    assert config.lake.root == str(tmp_path / "lake")
    assert config.stack.folder == str(tmp_path / "conf" / "s")


@pytest.mark.parametrize("root", ["s3a://bucket/lake", "/data/lake"])
def test_urls_and_absolute_paths_stay_as_they_are(tmp_path: Path, root: str) -> None:
    assert load_config(written(tmp_path, f"lake: {{root: '{root}'}}")).lake.root == root


def test_tables_are_patched_by_each_glob_that_fits_in_the_file_s_order(tmp_path: Path) -> None:
    config = load_config(
        written(
            tmp_path,
            "defaults: {max_rows: 7}\n"
            "tables:\n"
            "  'pagila.public.*': {deletes: hard, unavailable_value: gone}\n"
            "  'pagila.public.film*': {deletes: soft}\n",
        )
    )

    actor, film, other = (config.table(f"{name}") for name in ("pagila.public.actor", "pagila.public.film", "x.y.z"))

    assert (actor.deletes, actor.unavailable_value, actor.max_rows) == ("hard", "gone", 7)
    assert (film.deletes, film.unavailable_value, film.max_rows) == ("soft", "gone", 7)
    assert (other.deletes, other.unavailable_value) == ("soft", "__debezium_unavailable_value")


def test_a_patch_back_to_the_default_s_value_counts(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, "defaults: {deletes: hard}\ntables: {'a.b.c': {deletes: soft}}"))

    assert config.table("a.b.c").deletes == "soft"
