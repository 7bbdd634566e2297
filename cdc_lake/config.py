"""The settings of a run: one YAML file, checked before anything starts.

Precedence: flag > environment (`CDC_LAKE__KAFKA__BOOTSTRAP_SERVERS=…`) > file > default. The file is `--config`, else
`CDC_LAKE_CONFIG`, else `conf/cdc-lake.yml` in the working directory, else the one of the checkout this package runs
from. Relative paths in it start at the folder that holds the file.
"""

import difflib
import json
import os
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from cdc_lake.errors import ConfigError

CHECKOUT = Path(__file__).resolve().parents[1]
EMBEDDED = "embedded"
"""As an address: the server of that kind that `cdc-lake stack up` started."""


class Model(BaseModel):
    """Settings are read once and never changed; a key that is not known is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class KafkaConfig(Model):
    """The broker that bronze reads."""

    bootstrap_servers: str = Field(default=EMBEDDED, description="host:port, comma separated, or `embedded`.")
    timeout_seconds: float = Field(default=10.0, gt=0, description="How long a broker may take to answer one question.")


class RegistryConfig(Model):
    """The schema registry that framed records point to."""

    type: Literal["apicurio"] = Field(default="apicurio", description="Apicurio Registry, by its v3 interface.")
    url: str = Field(default=EMBEDDED, description="Up to and without `/apis`, or `embedded`.")
    ids: Literal["content", "global"] = Field(
        default="content",
        description="What the ids in the frames are: Apicurio 3 writes content ids unless told otherwise.",
    )
    timeout_seconds: float = Field(default=10.0, gt=0, description="For one request.")
    attempts: int = Field(default=4, ge=1, description="Requests in all before the registry counts as down.")


class LakeConfig(Model):
    """Where the tables are."""

    root: str = Field(
        default="../.cdc_lake/lake", description="Folder or URL; tables are <root>/<layer>/<prefix>/<schema>/<table>."
    )


class GoldConfig(Model):
    """The tables that are made from silver by SQL."""

    models: str = Field(default="gold", description="Folder of their models, a file <name>.sql for each.")


class StackConfig(Model):
    """The embedded servers of `cdc-lake stack` and `cdc-lake demo`."""

    folder: str = Field(default="../.cdc_lake/stack", description="Their data, logs and addresses.")


class TableConfig(Model):
    """How one table is treated. Nothing of it must be set."""

    deletes: Literal["soft", "hard"] = Field(
        default="soft", description="soft: the row stays with `__deleted = true`; hard: it goes."
    )
    soft_delete_values: Literal["last", "null"] = Field(
        default="last", description="What a soft-deleted row holds outside its key: its last real values, or nulls."
    )
    truncates: Literal["as_deletes", "hard", "soft", "refuse"] = Field(
        default="as_deletes",
        description="What a TRUNCATE does to the rows before it: what `deletes` says, a hard or a soft delete of each; "
        "or the run stops.",
    )
    truncates_across_partitions: bool = Field(
        default=False,
        description="Apply truncates of topics with several partitions too, where Kafka's time alone says what came "
        "before.",
    )
    remove_missing_after_snapshot: bool = Field(
        default=False,
        description="Delete the rows that a completed new snapshot of the whole table no longer has.",
    )
    delete_memory_days: float = Field(
        default=30.0, gt=0, description="How long a hard delete, a truncate or a moved row's values are remembered."
    )
    on_log_reset: Literal["stop", "warn"] = Field(
        default="stop",
        description="When the source's log positions went back on many keys while its clock went on (a restore).",
    )
    null_means_keep: tuple[str, ...] = Field(
        default=(),
        description="Columns whose null in an update means `not sent`: types the connector has no placeholder for.",
    )
    max_rows: int = Field(
        default=1_000_000, gt=0, description="Records a batch takes at most (whole bronze batches in silver)."
    )
    unavailable_value: str = Field(
        default="__debezium_unavailable_value", description="The connector's `unavailable.value.placeholder`."
    )
    max_quarantine_percent: float = Field(
        default=100.0,
        ge=0,
        le=100,
        description="More of a batch in quarantine than this ends the run with exit code 30, after the commit.",
    )


class LeaseConfig(Model):
    """A table is written by one run at a time; the others find its lease and end before they work."""

    enabled: bool = Field(default=True, description="Without it a second run is noticed when it commits, not before.")
    seconds: float = Field(default=60.0, gt=0, description="A lease not renewed for so long is free to take.")


class RunConfig(Model):
    """How a run goes about its tables."""

    parallel: int = Field(default=4, ge=1, description="Tables worked on side by side in one application.")


class TablePatch(Model):
    """What `tables:` may set for the tables its glob names; what is left out comes from `defaults:`."""

    deletes: Literal["soft", "hard"] | None = None
    soft_delete_values: Literal["last", "null"] | None = None
    truncates: Literal["as_deletes", "hard", "soft", "refuse"] | None = None
    truncates_across_partitions: bool | None = None
    remove_missing_after_snapshot: bool | None = None
    delete_memory_days: float | None = Field(default=None, gt=0)
    on_log_reset: Literal["stop", "warn"] | None = None
    null_means_keep: tuple[str, ...] | None = None
    max_rows: int | None = Field(default=None, gt=0)
    unavailable_value: str | None = None
    max_quarantine_percent: float | None = Field(default=None, ge=0, le=100)


class Config(BaseSettings):
    """Everything a run is told. Built by `load_config`."""

    model_config = SettingsConfigDict(
        env_prefix="CDC_LAKE__",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        nested_model_default_partial_update=True,
    )

    kafka: KafkaConfig = KafkaConfig()
    registry: RegistryConfig = RegistryConfig()
    lake: LakeConfig = LakeConfig()
    gold: GoldConfig = GoldConfig()
    stack: StackConfig = StackConfig()
    lease: LeaseConfig = LeaseConfig()
    run: RunConfig = RunConfig()
    defaults: TableConfig = TableConfig()
    tables: dict[str, TablePatch] = Field(default_factory=dict, description="By topic name or glob; later entries win.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment wins over what `load_config` read from the file; there is no .env file."""
        return env_settings, init_settings

    def table(self, name: str) -> TableConfig:
        """The settings of the table of topic `name`: the defaults, then each glob that fits, in the file's order."""
        settings = self.defaults.model_dump()
        for glob, patch in self.tables.items():
            if fnmatchcase(name, glob):
                settings |= patch.model_dump(exclude_none=True)
        return TableConfig(**settings)


def config_path(path: str | Path | None = None) -> Path:
    """The configuration file in effect.

    Raises:
        ConfigError: it does not exist.
    """
    asked = path or os.environ.get("CDC_LAKE_CONFIG")
    candidates = [Path(asked)] if asked else [Path("conf/cdc-lake.yml"), CHECKOUT / "conf/cdc-lake.yml"]
    for candidate in candidates:
        if candidate.is_file():
            return candidate.resolve()
    raise ConfigError(
        str(candidates[0]), "there is no such configuration file", "give one with --config or CDC_LAKE_CONFIG"
    )


def load_config(path: str | Path | None = None) -> Config:
    """Read and check the configuration file; make its paths absolute and its `embedded` addresses real.

    Raises:
        ConfigError: the file is missing, is not YAML, or holds an unknown key or a wrong value.
    """
    file = config_path(path)
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except yaml.YAMLError as exc:
        raise ConfigError(str(file), f"this is not YAML: {exc}", "mend the file") from exc
    if not isinstance(content, dict):
        raise ConfigError(str(file), "the file must hold keys and values", "see the README's configuration chapter")
    try:
        config = Config(**content)
    except ValidationError as exc:
        raise ConfigError(
            str(file), in_words(exc, Config), "mend the file, or the CDC_LAKE__ variable of that name"
        ) from exc
    return _resolved(config, file.parent)


def _resolved(config: Config, folder: Path) -> Config:
    models = str((folder / config.gold.models).resolve())
    stack = str((folder / config.stack.folder).resolve())
    root = config.lake.root if "://" in config.lake.root else str((folder / config.lake.root).resolve())
    return config.model_copy(
        update={
            "lake": config.lake.model_copy(update={"root": root}),
            "gold": config.gold.model_copy(update={"models": models}),
            "stack": config.stack.model_copy(update={"folder": stack}),
        }
    )


def kafka_address(config: Config) -> str:
    """The bootstrap servers, with `embedded` looked up."""
    return _address(config, config.kafka.bootstrap_servers, "kafka")


def registry_address(config: Config) -> str:
    """The registry's URL without a trailing slash, with `embedded` looked up."""
    return _address(config, config.registry.url, "registry").rstrip("/")


def endpoints_file(stack_folder: str | Path) -> Path:
    """Where a running embedded stack writes its addresses, as one JSON object of strings."""
    return Path(stack_folder) / "endpoints.json"


def _address(config: Config, value: str, server: str) -> str:
    if value != EMBEDDED:
        return value
    file = endpoints_file(config.stack.folder)
    if not file.is_file():
        raise ConfigError(
            f"{server}: embedded",
            f"no embedded servers have been started in {config.stack.folder}",
            "run `cdc-lake stack up`, or set the address in the configuration file",
        )
    address: str = json.loads(file.read_text(encoding="utf-8"))[server]
    return address


def in_words(exc: ValidationError, model: type[BaseModel]) -> str:
    """What is wrong, key by key; one that is not known with the nearest that is.

    Args:
        exc: what pydantic found.
        model: what was to be made.
    """
    return "; ".join(_one_in_words(model, error["type"], error["loc"], error["msg"]) for error in exc.errors())


def _one_in_words(model: type[BaseModel], kind: str, loc: tuple[int | str, ...], message: str) -> str:
    key = ".".join(map(str, loc))
    if kind != "extra_forbidden":
        return f"`{key}`: {message}"
    near = difflib.get_close_matches(str(loc[-1]), _known_keys(model, loc[:-1]), n=1)
    return f"`{key}` is not a known key" + (f" (did you mean `{near[0]}`?)" if near else "")


def _known_keys(root: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    model: Any = root
    for step in loc:
        fields: Mapping[str, Any] = getattr(model, "model_fields", {})
        if step in fields:
            annotation = fields[str(step)].annotation
            inner = get_args(annotation)
            model = inner[-1] if inner else annotation
    return list(getattr(model, "model_fields", {}))
