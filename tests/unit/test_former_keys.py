"""Keys of version 0.1, where settings had no groups, still work in files, variables, Parameter Store and Python."""

import json
import re
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import yaml
from pydantic import ValidationError

from cdc_lake.config import Config, TableConfig, load_config
from cdc_lake.config.base import Model
from cdc_lake.errors import ConfigError

pytestmark = pytest.mark.core

OF_TABLES: dict[str, tuple[str, Any]] = {
    "silver": ("storage", [{"format": "hudi", "type": "mor"}]),
    "deletes": ("deletes.mode", "hard"),
    "soft_delete_values": ("deletes.keep_values", "null"),
    "truncates": ("deletes.truncates", "refuse"),
    "truncates_across_partitions": ("deletes.across_partitions", True),
    "remove_missing_after_snapshot": ("deletes.missing_after_snapshot", True),
    "delete_memory_days": ("deletes.retention_days", 3.5),
    "on_log_reset": ("read.on_log_reset", "warn"),
    "null_means_keep": ("envelope.null_means_unchanged", ["a"]),
    "start": ("read.start", {"0": 1200}),
    "max_rows": ("read.max_records_per_batch", 7),
    "max_batch_bytes": ("read.max_batch_bytes", 8),
    "min_batch_bytes": ("read.min_batch_bytes", 9),
    "max_latency_seconds": ("read.max_latency_seconds", 1.5),
    "unavailable_value": ("envelope.unavailable_value_placeholder", "gone"),
    "key_framing": ("key.wire_format", "json"),
    "value_framing": ("value.wire_format", "csv"),
    "key_schemas": ("key.schemas", ["/k.avsc"]),
    "value_schemas": ("value.schemas", ["/v.avsc"]),
    "key_columns": ("key.columns", ["id"]),
    "columns": ("value.columns", {"id": "int"}),
    "mode": ("merge.mode", "append"),
    "derive": ("merge.derive", {"b": "a + 1"}),
    "keys": ("merge.keys", ["id"]),
    "sequence_by": ("merge.sequence_by", "at"),
    "apply_as_deletes": ("merge.apply_as_deletes", "gone"),
    "evolution": ("schema.evolution", "freeze"),
    "except_columns": ("schema.exclude", ["secret"]),
    "rename": ("schema.rename", {"a": "b"}),
    "cast": ("schema.cast", {"a": "int"}),
    "record_names": ("envelope.record_names", ["a.*"]),
    "metadata_prefix": ("envelope.add_fields_prefix", "_"),
    "metadata_fields": ("envelope.add_fields_renamed", {"op": "__operation"}),
    "max_record_bytes": ("read.max_record_bytes", 10),
    "expectations": ("quality.expectations", [{"name": "paid", "holds": "amount >= 0"}]),
    "on_error": ("quality.on_error", "stop"),
    "dead_letter_topic": ("quality.dead_letter_topic", "letters"),
    "max_quarantined": ("quality.max_quarantined", "0.1%"),
}
EMR = {"region": "eu-central-1", "artifacts": "s3://bucket/packages", "cluster": {}}
OF_ALL: dict[str, tuple[str, Any]] = {
    **{f"defaults.{old}": (f"defaults.{new}", value) for old, (new, value) in OF_TABLES.items()},
    "lease.enabled": ("lake.lease.enabled", False),
    "lease.seconds": ("lake.lease.seconds", 5.0),
    "metrics.prometheus_folder": ("run.metrics.prometheus_folder", "/metrics"),
    "metrics.statsd": ("run.metrics.statsd", "localhost:8125"),
    "emr.driver.cores": ("emr.resources.driver.cores", 8),
    "emr.driver.memory": ("emr.resources.driver.memory", "9g"),
    "emr.executor.cores": ("emr.resources.executor.cores", 8),
    "emr.executor.memory": ("emr.resources.executor.memory", "9g"),
    "emr.executor.most": ("emr.resources.executor.most", 9),
    **{
        f"emr.cluster.{key}": (f"emr.cluster.new.{key}", value)
        for key, value in {
            "service_role": "role",
            "instance_profile": "profile",
            "subnet": "subnet-1",
            "security_configuration": "strict",
            "primary": "m7i.large",
            "core": "m7i.large",
            "core_count": 3,
            "parallel_steps": 4,
            "idle_seconds": 60,
            "bootstrap": ["s3://bucket/more.sh"],
            "classifications": {"spark": {"a": "b"}},
        }.items()
    },
}
"""Every key of 0.1 with another name today, with that name and a value that is not the default."""
WRITTEN_OTHERWISE = {"defaults.soft_delete_values": False}
"""Values of the new key that replace those of the old one."""


@pytest.fixture(autouse=True)
def no_file_of_the_developer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CDC_LAKE_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)


def nested(key: str, value: Any) -> dict[str, Any]:
    """The mapping of a dotted key, with other required settings."""
    for step in reversed(key.split(".")):
        value = {step: value}
    settings: dict[str, Any] = {"emr": {**EMR, **value["emr"]}} if key.startswith("emr.") else value
    return settings


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Both mappings merged; the other's texts win."""
    both = {
        key: merged(one[key], value)
        for key, value in other.items()
        if isinstance(one.get(key), dict) and isinstance(value, dict)
    }
    return one | other | both


def loaded(folder: Path, *settings: dict[str, Any]) -> Config:
    """The configuration of a file with all of them."""
    file = folder / "cdc-lake.yml"
    file.write_text("".join(yaml.safe_dump(one) for one in settings), encoding="utf-8")
    return load_config(file)


@pytest.mark.parametrize("old", OF_ALL)
def test_former_keys_work_in_a_file(old: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    new, value = OF_ALL[old]
    today = loaded(tmp_path, nested(new, WRITTEN_OTHERWISE.get(old, value)))
    assert not caplog.records
    assert today != loaded(tmp_path, {"emr": EMR} if old.startswith("emr.") else {})

    assert loaded(tmp_path, nested(old, value)) == today
    (warning,) = caplog.messages
    named = re.fullmatch(r"\S+cdc-lake\.yml: `(\S+)` is deprecated; use `(\S+)`", warning)
    assert named and f"{old}.".startswith(f"{named[1]}.") and f"{new}.".startswith(f"{named[2]}.")


@pytest.mark.parametrize("old", [key for key in OF_ALL if not key.startswith("emr.")])
def test_former_keys_work_in_a_variable(
    old: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    new, value = OF_ALL[old]
    today = loaded(tmp_path, nested(new, WRITTEN_OTHERWISE.get(old, value)))
    variable = f"CDC_LAKE__{old.upper().replace('.', '__')}"
    monkeypatch.setenv(variable, json.dumps(value) if isinstance(value, list | dict) else str(value))

    assert loaded(tmp_path) == today
    assert f"{variable}: `" in caplog.text


@pytest.mark.parametrize("old", OF_TABLES)
def test_former_keys_work_in_python(old: str, caplog: pytest.LogCaptureFixture) -> None:
    new, value = OF_TABLES[old]

    table = TableConfig(**{old: value})

    assert table == TableConfig(**nested(new, WRITTEN_OTHERWISE.get(f"defaults.{old}", value)))
    assert f"TableConfig: `{old}` is deprecated; use `{new}`" in caplog.text


@pytest.mark.parametrize("old", [key for key in OF_ALL if key != "defaults.deletes"])
def test_both_keys_of_a_setting_are_an_error(old: str, tmp_path: Path) -> None:
    new, value = OF_ALL[old]
    both = merged(nested(new, WRITTEN_OTHERWISE.get(old, value)), nested(old, value))

    with pytest.raises(ConfigError, match=r"is the former key of `\S+`, and both are set; remove"):
        loaded(tmp_path, both)


def test_both_variables_of_a_setting_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_LAKE__DEFAULTS__DELETES", "hard")
    monkeypatch.setenv("CDC_LAKE__DEFAULTS__DELETES__MODE", "soft")

    with pytest.raises(ConfigError, match=r"DEFAULTS__DELETES and CDC_LAKE__DEFAULTS__DELETES__MODE are the same"):
        loaded(tmp_path)


@pytest.mark.parametrize("old_is_above", [True, False])
def test_variables_win_over_the_file_under_either_key(
    old_is_above: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = {"max_rows": 3, "deletes": "hard"}, {"read": {"max_records_per_batch": 3}, "deletes": {"mode": "hard"}}
    above = (
        {"MAX_ROWS": "4", "DELETES": "soft"}
        if old_is_above
        else {"READ__MAX_RECORDS_PER_BATCH": "4", "DELETES__MODE": "soft"}
    )
    for name, value in above.items():
        monkeypatch.setenv(f"CDC_LAKE__DEFAULTS__{name}", value)

    config = loaded(tmp_path, {"defaults": new if old_is_above else old})

    assert (config.defaults.read.max_records_per_batch, config.defaults.deletes.mode) == (4, "soft")


def test_former_keys_of_a_glob_override_the_defaults(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = loaded(
        tmp_path,
        {
            "defaults": {"deletes": {"mode": "hard", "retention_days": 5}},
            "tables": {"a.*": {"deletes": "soft", "max_rows": 7}, "a.b.c": {"deletes": {"keep_values": False}}},
        },
    )

    deletes = config.table("a.b.c").deletes
    assert (deletes.mode, deletes.keep_values, deletes.retention_days) == ("soft", False, 5)
    assert config.table("a.b.c").read.max_records_per_batch == 7
    assert "`tables.a.*.max_rows` is deprecated; use `tables.a.*.read.max_records_per_batch`" in caplog.text


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"defaults": {"max_rows": 0}}, "`defaults.max_rows`: Input should be greater than 0"),
        ({"defaults": {"read": {"max_records_per_batch": 0}}}, "`defaults.read.max_records_per_batch`: Input"),
        ({"defaults": {"deletes": "maybe"}}, "`defaults.deletes`: Input should be 'soft' or 'hard'"),
        ({"tables": {"a.b": {"silver": [{"formt": "hudi"}]}}}, "`tables.a.b.silver.0.formt` is not a known key (did"),
        ({"tables": {"a.b": {"max_row": 1}}}, "`tables.a.b.max_row` is not a known key (did you mean `read.max_rec"),
        ({"lease": {"second": 1}}, "`lease.second` is not a known key (did you mean `seconds`?)"),
    ],
)
def test_errors_name_the_key_that_was_written(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, settings)

    assert said in str(caught.value)


def test_errors_in_python_name_the_key_that_was_written() -> None:
    with pytest.raises(ValidationError) as caught:
        Config(defaults={"max_rows": 0}, tables={"a": {"silver": []}})  # type: ignore[arg-type]

    assert [error["loc"] for error in caught.value.errors()] == [("defaults", "max_rows"), ("tables", "a", "silver")]


def models(root: type[Model]) -> set[type[Model]]:
    """A model and all settings in it."""
    found, kinds = {root}, [field.annotation for field in root.model_fields.values()]
    while kinds:
        kind = kinds.pop()
        if get_origin(kind) is not None:
            kinds += get_args(kind)
        elif isinstance(kind, type) and issubclass(kind, Model):
            found |= models(kind)
    return found


def test_no_group_has_more_than_12_settings() -> None:
    assert {model.__name__: len(model.model_fields) for model in models(Config) if len(model.model_fields) > 12} == {}
    assert len(models(Config)) > 20


def test_every_former_key_is_tested() -> None:
    assert TableConfig.former_keys.keys() == OF_TABLES.keys()
    for model in models(Config) - {TableConfig}:
        assert all(any(f".{old}." in f".{key}." for key in OF_ALL) for old in model.former_keys)
