"""Settings from the file, the environment and defaults, and the errors of wrong ones."""

import json
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from pydantic import ValidationError

from cdc_lake.config import (
    BearerAuth,
    Config,
    DeletesConfig,
    KafkaConfig,
    KeyConfig,
    QualityConfig,
    ReadConfig,
    RegistryAuth,
    StackConfig,
    StorageConfig,
    TableConfig,
    TlsConfig,
    ValueConfig,
    config_path,
    load_config,
    secret,
)
from cdc_lake.config.base import Model
from cdc_lake.errors import ConfigError

pytestmark = pytest.mark.core


@pytest.fixture(autouse=True)
def no_settings_of_the_developer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ignore the variables and the conf/ folder of the user who runs the tests."""
    for name in ("CDC_LAKE_CONFIG", "CDC_LAKE__KAFKA__BOOTSTRAP_SERVERS", "CDC_LAKE__REGISTRY__ATTEMPTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


CANARY = "canary-3b1e"


def written(folder: Path, text: str) -> Path:
    file = folder / "cdc-lake.yml"
    file.write_text(text, encoding="utf-8")
    return file


def refused(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(written(folder, text))
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_empty_file_means_the_defaults(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, ""))

    assert config.table("any.table.at_all").deletes.mode == "soft"
    assert config.registry.ids == "auto"


def test_environment_overrides_only_its_own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_LAKE__KAFKA__BOOTSTRAP_SERVERS", "env:1")
    file = written(tmp_path, "kafka: {bootstrap_servers: 'file:1', timeout_seconds: 3}\nregistry: {attempts: 9}")

    config = load_config(file)

    assert config.kafka.bootstrap_servers == "env:1"
    assert config.kafka.timeout_seconds == 3
    assert config.registry.attempts == 9


def test_environment_names_the_file_and_an_argument_overrides_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_variable = written(tmp_path, "registry: {attempts: 2}")
    (tmp_path / "other").mkdir()
    by_argument = written(tmp_path / "other", "registry: {attempts: 3}")
    monkeypatch.setenv("CDC_LAKE_CONFIG", str(by_variable))

    assert load_config().registry.attempts == 2
    assert load_config(by_argument).registry.attempts == 3


def test_file_in_the_working_directory_is_found(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    file = written(tmp_path / "conf", "")

    assert config_path() == file.resolve()


def test_gold_folders_default_to_the_folder_of_the_file(tmp_path: Path) -> None:
    assert load_config(written(tmp_path, "")).gold.models == str(tmp_path / "gold")
    assert load_config(written(tmp_path, "")).gold.schemas == str(tmp_path / "schemas")
    assert load_config(written(tmp_path, "gold: {models: ../sql}")).gold.models == str(tmp_path.parent / "sql")


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yml: the configuration file does not exist"):
        load_config(tmp_path / "nowhere.yml")


def test_percent_sign_in_the_root_causes_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = load_config(written(tmp_path, 'lake: {root: "/data/100%25"}'))

    (warned,) = config.lake.warnings
    assert warned.startswith("lake.root: delta-rs decodes `%` in paths")
    assert [record.getMessage().endswith(warned) for record in caplog.records] == [True]
    assert load_config(written(tmp_path, "lake: {root: /data/lake}")).lake.warnings == []


def test_unknown_key_is_named_with_file_and_nearest_key(tmp_path: Path) -> None:
    said = refused(tmp_path, "kafka: {bootstrap_server: 'b:1'}")

    assert "cdc-lake.yml: `kafka.bootstrap_server` is not a known key (did you mean `bootstrap_servers`?)" in said


@pytest.mark.parametrize(
    ("servers", "why"),
    [
        ("kafka://broker:9092", "write `host:port` without a scheme"),
        ("broker", "write `host:port` without a scheme"),
        ("a:9092,,b:9092", "write `host:port` without a scheme"),
        (f"lake:{CANARY}@broker:9092", "must not contain a user or a password; set `kafka.auth`"),
        (f"kafka://lake:{CANARY}@broker:9092", "must not contain a user or a password; set `kafka.auth`"),
    ],
)
def test_brokers_that_are_not_host_and_port_are_refused(tmp_path: Path, servers: str, why: str) -> None:
    said = refused(tmp_path, f"kafka: {{bootstrap_servers: '{servers}'}}")

    assert "`kafka.bootstrap_servers`" in said and why in said
    assert CANARY not in said


@pytest.mark.parametrize("servers", ["a-1.b_c:9092, 10.0.0.1:9093", "[::1]:9092", "embedded"])
def test_brokers_as_host_and_port_are_accepted(tmp_path: Path, servers: str) -> None:
    assert load_config(written(tmp_path, f"kafka: {{bootstrap_servers: '{servers}'}}")).kafka.bootstrap_servers


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: {\n", "this is not YAML: line 2, column 1: expected the node content, but found '<stream end>'"),
        (f"a: *{CANARY}", "this is not YAML: line 1, column 4: found undefined alias …"),
        (f"a: !{CANARY} b", "this is not YAML: line 1, column 4: could not determine a constructor for the tag …"),
        (f'a: "{CANARY}\nb: {CANARY}: c', "found unexpected end of stream"),
        (f"a: {CANARY}\n b: c", "mapping values are not allowed here"),
        (f"a: 2026-13-01 # {CANARY}", "a date or a number in it is invalid"),
        (f"a: {CANARY}\0", "it has a control character"),
        (f"lake: {{root: 's3a://key:{CANARY}@bucket/lake'}}", "`lake.root`: a URL must not contain a password"),
        (f"files: {{root: 's3a://key:{CANARY}@bucket/lake'}}", "`files.root`: a URL must not contain a password"),
    ],
)
def test_errors_of_the_file_do_not_show_its_text(tmp_path: Path, text: str, why: str) -> None:
    said = refused(tmp_path, text)

    assert why in said
    assert CANARY not in said


def test_account_in_a_lakes_url_is_accepted(tmp_path: Path) -> None:
    root = "abfss://lake@account.dfs.core.windows.net/lake"

    assert load_config(written(tmp_path, f"lake: {{root: '{root}'}}")).lake.root == root


def test_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "cdc-lake.yml"
    file.write_bytes(b"lake: {root: caf\xe9}")

    with pytest.raises(ConfigError, match=r"cdc-lake\.yml: byte 16 is not UTF-8; save the file as UTF-8"):
        load_config(file)


def test_unknown_top_level_key_is_named(tmp_path: Path) -> None:
    assert "`kafk` is not a known key (did you mean `kafka`?)" in refused(tmp_path, "kafk: {}")


def test_unknown_key_of_a_table_is_named(tmp_path: Path) -> None:
    said = refused(tmp_path, "tables: {'a.b.c': {delete: {mode: hard}}}")

    assert "`tables.a.b.c.delete` is not a known key (did you mean `deletes`?)" in said


@pytest.mark.parametrize(
    "host",
    [
        *("169.254.169.254", "169.254.170.2", "2852039166", "0xa9fea9fe", "0xA9.254.169.254", "0251.0376.0251.0376"),
        *("169.254.43518", "100.100.100.200", "[fe80::1]", "[fe80::1%25eth0]", "[fd00:ec2::254]"),
        *("[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]", "[::169.254.169.254]", "[64:ff9b::a9fe:a9fe]"),
        *("metadata.google.internal", "METADATA.google.internal.", "metadata", "instance-data"),
    ],
)
def test_metadata_service_urls_are_refused_in_every_notation(tmp_path: Path, host: str) -> None:
    assert "link-local and metadata service addresses are not allowed" in refused(
        tmp_path, f"registry: {{url: 'http://{host}/latest'}}"
    )


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "10.0.0.1", "[::1]", "[fd00::1]", "[::ffff:10.0.0.1]", "registry", "1.example"]
)
def test_other_hosts_are_accepted(tmp_path: Path, host: str) -> None:
    config = load_config(written(tmp_path, f"registry: {{url: 'http://{host}:8081'}}"))

    assert config.registry.url == f"http://{host}:8081"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("defaults: {deletes: {mode: maybe}}", "`defaults.deletes.mode`"),
        ("defaults: {storage: [{format: paimon}]}", "`defaults.storage.0.format`"),
        ("defaults: {storage: [{type: mor}]}", "only tables of format hudi or iceberg have a `type`"),
        ("defaults: {storage: [{properties: {delta.appendOnly: 'true'}}]}", "`delta.appendOnly` is not a property"),
        (
            "defaults: {storage: [{format: hudi, properties: {hoodie.compact.inlin: 'true'}}]}",
            "did you mean `hoodie.compact.inline`?",
        ),
        ("defaults: {storage: []}", "`defaults.storage`"),
        ("defaults: {storage: [{format: hudi}, {format: hudi, type: cow}]}", "have the same format and type"),
        ("defaults: {read: {max_records_per_batch: 0}}", "`defaults.read.max_records_per_batch`"),
        ("defaults: {quality: {max_quarantined: 101%}}", "`defaults.quality.max_quarantined`"),
        ("registry: {ids: global_id}", "`registry.ids`"),
        ("registry: {attempts: many}", "`registry.attempts`"),
        ("registry: {type: kafka}", "`registry.type`"),
        ("registry: {url: 'registry:8080'}", "`registry.url`: write one address"),
        ("registry: {url: 'http://a,http://b'}", "`registry.url`: write one address"),
        ("registry: {url: 'https://a/?b'}", "`registry.url`: an address must not have a query or a fragment"),
        ("registry: {url: 'http://169.254.169.254/latest'}", "link-local and metadata service addresses"),
        ("registry: {url: 'http://[fe80::1]'}", "link-local and metadata service addresses"),
        ("registry: {auth: {}}", "`registry.auth`: write one of `basic`, `bearer` and `oauth`"),
        ("registry: {auth: {basic: {user: a, password: 'env:A'}, bearer: {token: 'env:B'}}}", "write one of"),
        ("registry: {auth: {basic: {user: a}}}", "`registry.auth.basic.password`"),
        ("registry: {auth: {basic: {user: a, pasword: 'env:A'}}}", "did you mean `password`?"),
        ("registry: {tls: {key: k.pem}}", "`registry.tls`: `key` is the private key of a certificate"),
        ("registry: {type: ccompat, context: a}", "`registry`: only registries of type `confluent` have a `context`"),
        ("registry: {type: confluent, context: 'a:b'}", "`registry.context`"),
        ("registry: {type: glue, auth: {bearer: {token: 'env:A'}}}", "remove `auth`"),
        ("registry: {headers: {Authorization: x}}", "headers must not contain credentials"),
        ("registry: {headers: {'a b': x}}", "a header's name"),
        ('registry: {headers: {a: "x\\ny"}}', "a header's value may have printable ASCII characters only"),
    ],
)
def test_wrong_value_names_its_key(tmp_path: Path, text: str, key: str) -> None:
    assert key in refused(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "cure"),
    [
        ("registry: {auth: {basic: {user: a, password: 'hunter2'}}}", "`env:NAME` for a variable"),
        ("registry: {auth: {bearer: {token: 'hunter2'}}}", "`file:PATH` for a file"),
        ("registry: {auth: {bearer: {token: 'env:', tokn: hunter2}}}", "`file:PATH` for a file"),
        (
            "registry: {auth: {oauth: {token_url: 'https://a', client_id: a, client_secret: 'hunter2'}}}",
            "write a reference to the secret, not the secret",
        ),
        ("registry: {url: 'https://user:hunter2@registry'}", "set `registry.auth`"),
        ("registry: {url: 'https://hunter2@registry'}", "set `registry.auth`"),
        ("registry: {proxy: 'http://user:hunter2@proxy'}", "write a reference such as `env:NAME` or `file:PATH`"),
    ],
)
def test_secret_in_the_file_is_refused_and_not_shown(tmp_path: Path, text: str, cure: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(written(tmp_path, text))

    assert cure in str(caught.value)
    assert caught.value.__cause__ is not None
    assert "hunter2" not in str(caught.value) + str(caught.value.__cause__)


def test_secret_passed_to_a_settings_class_is_not_shown() -> None:
    with pytest.raises(ValidationError, match="write a reference to the secret") as caught:
        BearerAuth(token="hunter2")

    assert "hunter2" not in str(caught.value)


def test_secrets_are_read_from_variables_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text(" from a file \r\n")
    monkeypatch.setenv("A_SECRET", "from a variable")

    found = secret("env:A_SECRET"), secret(f"file:{tmp_path}/secret")

    assert [one.get_secret_value() for one in found] == ["from a variable", " from a file "]
    assert "from" not in repr(found)


def test_environment_can_set_one_field_of_an_authentication(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_LAKE__REGISTRY__AUTH__BASIC__USER", "from the environment")

    config = load_config(written(tmp_path, "registry: {auth: {basic: {user: a, password: 'env:P'}}}"))

    assert config.registry.auth is not None and config.registry.auth.basic is not None
    assert (config.registry.auth.basic.user, config.registry.auth.basic.password) == ("from the environment", "env:P")


def test_wrong_value_in_the_environment_is_a_config_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_LAKE__REGISTRY__ATTEMPTS", "none")

    assert "`registry.attempts`" in refused(tmp_path, "")


def test_an_unknown_section_in_the_environment_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_LAKE__KAFK__TIMEOUT_SECONDS", "3")

    assert "`kafk` is not a known key (did you mean `kafka`?)" in refused(tmp_path, "")


def test_environment_json_merges_into_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, "registry: {headers: {a: file, b: file}, attempts: 2}")
    monkeypatch.setenv("CDC_LAKE__REGISTRY__ATTEMPTS", "4")
    monkeypatch.setenv("CDC_LAKE__REGISTRY", '{"headers": {"b": "env"}, "attempts": 3}')
    monkeypatch.setenv("CDC_LAKE__CATALOG__DATABASE", "{prefix}_{layer}")

    config = load_config(file)

    assert config.registry.headers == {"a": "file", "b": "env"}
    assert config.registry.attempts == 4, "the variable of the inner key wins"
    assert config.catalog.database == "{prefix}_{layer}"


def test_empty_variables_unset_optional_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_LAKE__FILES__ROOT", "")

    assert load_config(written(tmp_path, "files: {root: topics}")).files.root is None


def test_a_start_offset_in_the_environment_needs_a_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_LAKE__DEFAULTS__READ__START", "1200")
    assert "a number does not name a partition" in refused(tmp_path, "")

    monkeypatch.setenv("CDC_LAKE__DEFAULTS__READ__START", '{"0": 1200}')
    assert load_config(written(tmp_path, "")).defaults.read.start == {0: 1200}


def test_a_file_that_is_not_yaml_is_refused(tmp_path: Path) -> None:
    assert "this is not YAML" in refused(tmp_path, "kafka: [")


def test_file_without_keys_is_refused(tmp_path: Path) -> None:
    assert "is not a mapping of keys to values" in refused(tmp_path, "- kafka")


def test_embedded_address_without_a_stack_names_stack_up(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, "stack: {folder: nothing}"))

    with pytest.raises(ConfigError, match=r"kafka: embedded: .*stack up"):
        _ = config.kafka.address
    with pytest.raises(ConfigError, match=r"registry: embedded: .*stack up"):
        _ = config.registry.address


def test_embedded_address_is_read_from_the_stack(tmp_path: Path) -> None:
    (tmp_path / "stack").mkdir()
    addresses = {"kafka": "127.0.0.1:9", "registry": "http://127.0.0.1:8/"}
    (tmp_path / "stack" / "endpoints.json").write_text(json.dumps(addresses))
    config = load_config(written(tmp_path, "stack: {folder: stack}"))

    assert config.kafka.address == "127.0.0.1:9"
    assert config.registry.address == "http://127.0.0.1:8"
    by_ccompat = load_config(written(tmp_path, "stack: {folder: stack}\nregistry: {type: ccompat}"))
    assert by_ccompat.registry.address == "http://127.0.0.1:8/apis/ccompat/v7"
    (tmp_path / "stack" / "endpoints.json").write_text('{"kafka": "127.0.0.1:7"}')
    assert config.kafka.address == "127.0.0.1:7"


def test_each_config_resolves_embedded_in_its_own_stack(tmp_path: Path) -> None:
    kafka, configs = KafkaConfig(), []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "endpoints.json").write_text(json.dumps({"kafka": f"{name}:9092"}))
        configs.append(Config(kafka=kafka, stack=StackConfig(folder=str(tmp_path / name))))

    assert [config.kafka.address for config in configs] == ["one:9092", "two:9092"]


def test_relative_paths_start_at_the_folder_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    registry = "registry: {auth: {bearer: {token: 'file:t'}}, tls: {ca: ca.pem, cert: /c.pem}, proxy: 'file:../p'}"
    config = load_config(written(tmp_path / "conf", f"lake: {{root: ../lake}}\nstack: {{folder: s}}\n{registry}"))

    assert config.lake.root == str(tmp_path / "lake")
    assert config.stack.folder == str(tmp_path / "conf" / "s")
    assert config.registry.auth == RegistryAuth(bearer=BearerAuth(token=f"file:{tmp_path}/conf/t"))
    assert config.registry.tls == TlsConfig(ca=str(tmp_path / "conf" / "ca.pem"), cert="/c.pem")
    assert config.registry.proxy == f"file:{tmp_path}/p"


@pytest.mark.parametrize("root", ["s3a://bucket/lake", "/data/lake"])
def test_urls_and_absolute_paths_are_unchanged(tmp_path: Path, root: str) -> None:
    assert load_config(written(tmp_path, f"lake: {{root: '{root}'}}")).lake.root == root


def test_matching_globs_patch_tables_in_file_order(tmp_path: Path) -> None:
    config = load_config(
        written(
            tmp_path,
            "defaults: {read: {max_records_per_batch: 7}}\n"
            "tables:\n"
            "  'pagila.public.*': {deletes: {mode: hard}, envelope: {unavailable_value_placeholder: gone}}\n"
            "  'pagila.public.film*': {deletes: {mode: soft}}\n",
        )
    )

    actor, film, other = (config.table(f"{name}") for name in ("pagila.public.actor", "pagila.public.film", "x.y.z"))

    def found(table: TableConfig) -> tuple[str, str, int]:
        return table.deletes.mode, table.envelope.unavailable_value_placeholder, table.read.max_records_per_batch

    assert found(actor) == ("hard", "gone", 7)
    assert found(film) == ("soft", "gone", 7)
    assert found(other) == ("soft", "__debezium_unavailable_value", 7)


def test_topics_that_take_dead_letters_have_none() -> None:
    config = Config(defaults=TableConfig(quality=QualityConfig(dead_letter_topic="letters")))

    assert config.dead_letter_topic("a.b.c") == "letters"
    assert config.dead_letter_topic("letters") is None


def test_patch_back_to_the_default_value_is_applied(tmp_path: Path) -> None:
    config = load_config(
        written(tmp_path, "defaults: {deletes: {mode: hard}}\ntables: {'a.b.c': {deletes: {mode: soft}}}")
    )

    assert config.table("a.b.c").deletes.mode == "soft"


def test_only_explicit_table_settings_override_the_defaults() -> None:
    config = Config(
        defaults=TableConfig(deletes=DeletesConfig(mode="hard")),
        tables={"a.*": TableConfig(read=ReadConfig(max_records_per_batch=7))},
    )

    assert (config.table("a.b").deletes.mode, config.table("a.b").read.max_records_per_batch) == ("hard", 7)


def test_silver_formats_come_from_file_or_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, "tables: {'a.*': {storage: [{format: hudi, type: mor}]}}")
    monkeypatch.setenv("CDC_LAKE__DEFAULTS__STORAGE", '[{"format": "hudi"}]')

    config = load_config(file)

    assert config.table("a.b").storage == (StorageConfig(format="hudi", type="mor"),)
    assert config.table("b.c").storage == (StorageConfig(format="hudi"),)


def test_schema_files_start_at_the_folder_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "cdc-lake.yml"
    file.write_text("defaults: {key: {schemas: [key.avsc]}}\ntables: {'a.*': {value: {schemas: [sub/value.avsc]}}}\n")

    found = load_config(file).table("a.b")

    assert found.key.schemas == (str(tmp_path / "key.avsc"),)
    assert found.value.schemas == (str(tmp_path / "sub" / "value.avsc"),)


def test_source_database_is_configured_by_prefix_or_embedded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = "postgresql://me:secret@db.example/shop"
    (tmp_path / "address").write_text(f"{address}\n")
    monkeypatch.setenv("SHOP_URL", address)
    (tmp_path / "stack").mkdir()
    (tmp_path / "stack" / "endpoints.json").write_text('{"postgres": "postgresql://postgres@127.0.0.1:1/postgres"}')
    config = load_config(
        written(tmp_path, "databases: {shop: {url: env:SHOP_URL}, till: {url: 'file:address'}}\nstack: {folder: stack}")
    )

    assert config.database_url("shop").get_secret_value() == address
    assert config.database_url("till").get_secret_value() == address
    assert config.database_url("pagila").get_secret_value() == "postgresql://postgres@127.0.0.1:1/pagila"
    assert "secret" not in repr(config.database_url("shop"))


def test_non_postgres_address_is_refused_without_showing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_URL", "mysql://me:secret@db.example/shop")
    config = load_config(written(tmp_path, "databases: {shop: {url: env:SHOP_URL}}"))

    with pytest.raises(ConfigError, match=r"databases\.shop\.url: only Postgres databases can be compared") as caught:
        config.database_url("shop")

    assert "secret" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_database_address_in_the_file_is_refused(tmp_path: Path) -> None:
    assert "write a reference to the secret" in refused(
        tmp_path, "databases: {shop: {url: 'postgresql://me:secret@db/shop'}}"
    )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"value": {"wire_format": "bare"}},
            "t: value.wire_format: bare: such records do not contain their schema.*`value.schemas`",
        ),
        ({"key": {"wire_format": "single-object"}}, "t: key.wire_format: single-object: .*`key.schemas`"),
        (
            {"value": {"wire_format": "csv"}},
            "t: value.wire_format: csv: such records do not contain column names.*`value.columns`",
        ),
        (
            {"merge": {"keys": ("id",)}, "schema": {"exclude": ("id",)}},
            "t: schema.exclude: id: `merge.keys` or `merge.sequence_by` needs",
        ),
        ({"merge": {"sequence_by": "at"}, "schema": {"exclude": ("at",)}}, "t: schema.exclude: at: "),
    ],
)
def test_incomplete_settings_name_what_is_missing(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        TableConfig(**settings).check("t")
    TableConfig(value=ValueConfig(wire_format="bare", schemas=("a.avsc",)), key=KeyConfig(wire_format="string")).check(
        "t"
    )


@pytest.mark.parametrize(
    ("root", "cores", "setting", "parallel"),
    [
        ("lake", 2, None, 2),
        ("lake", 64, None, 4),
        ("s3://b/lake", 2, None, 4),
        ("lake", 2, 3, 3),
        ("s3://b/lake", 2, 8, 8),
    ],
)
def test_tables_in_parallel_depend_on_cores_in_a_local_lake(
    root: str, cores: int, setting: int | None, parallel: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)

    assert Config(lake={"root": root}, run={"parallel": setting}).parallel == parallel


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
