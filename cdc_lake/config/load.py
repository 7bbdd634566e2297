"""The settings of a run: one YAML file, checked before anything starts.

Precedence: flag > environment (`CDC_LAKE__KAFKA__BOOTSTRAP_SERVERS=…`) > file > default. The file is `--config`, else
`CDC_LAKE_CONFIG`, else `conf/cdc-lake.yml` in the working directory, else the one of the checkout this package runs
from. Relative paths in it start at the folder that holds the file. Instead of a file it may be a parameter of AWS'
Parameter Store, `ssm:NAME`; then they start at `conf` in the working directory, where a job has the package's conf/.
"""

import os
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from cdc_lake import aws
from cdc_lake.config.base import Model, in_words
from cdc_lake.config.kafka import KafkaConfig
from cdc_lake.config.registry import RegistryConfig
from cdc_lake.config.secrets import SSM, is_reference
from cdc_lake.config.settings import Config
from cdc_lake.config.table import TableConfig
from cdc_lake.errors import ConfigError

CHECKOUT = Path(__file__).resolve().parents[2]


Settings = TypeVar("Settings", bound=Model)


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

    Args:
        path: of the file, or `ssm:NAME`, a parameter of AWS' Parameter Store.

    Raises:
        ConfigError: the file is missing, is not YAML, or holds an unknown key or a wrong value; or the lake of a
            parameter's settings is a local folder.
        InstallationError: boto3 is not installed.
        InfrastructureError: AWS does not answer.
    """
    asked = str(path or os.environ.get("CDC_LAKE_CONFIG", ""))
    if asked.startswith(SSM):
        where, folder, text = asked, Path("conf").resolve(), aws.parameter(asked.removeprefix(SSM))
    else:
        file = config_path(path)
        where, folder, text = str(file), file.parent, file.read_text(encoding="utf-8")
    try:
        content = yaml.safe_load(text) or {}
    except yaml.YAMLError as exc:
        raise ConfigError(where, f"this is not YAML: {exc}", "mend the file") from exc
    if not isinstance(content, dict):
        raise ConfigError(where, "the file must hold keys and values", "see docs/settings.md")
    try:
        config = Config(**content)
    except ValidationError as exc:
        raise ConfigError(
            where, in_words(exc, Config), "mend the file, or the CDC_LAKE__ variable of that name"
        ) from exc
    if asked.startswith(SSM) and "://" not in config.lake.root:
        what = "`lake.root` is a local folder, and the machine that reads these settings will be gone"
        raise ConfigError(where, what, "write an address, such as s3://bucket/lake")
    return _resolved(config, folder)


def _resolved(config: Config, folder: Path) -> Config:
    lake = config.lake.model_copy(update={"root": _absolute(config.lake.root, folder)})
    gold = config.gold.model_copy(
        update={name: _absolute(getattr(config.gold, name), folder) for name in ("models", "schemas")}
    )
    stack = config.stack.model_copy(update={"folder": _absolute(config.stack.folder, folder)})
    kafka, registry = _kafka_resolved(config.kafka, folder), _registry_resolved(config.registry, folder)
    databases = {
        prefix: own.model_copy(update={"url": _reference_resolved(own.url, folder)})
        for prefix, own in config.databases.items()
    }
    tables = {
        "defaults": _with_files(config.defaults, folder),
        "tables": {glob: _with_files(own, folder) for glob, own in config.tables.items()},
    }
    files = config.files
    if files.root:
        files = files.model_copy(update={"root": _absolute(files.root, folder)})
    servers = {"files": files, "stack": stack, "kafka": kafka, "registry": registry, "databases": databases}
    metrics = config.metrics
    if metrics.prometheus_folder:
        metrics = metrics.model_copy(update={"prometheus_folder": _absolute(metrics.prometheus_folder, folder)})
    return config.model_copy(update={"lake": lake, "gold": gold, "metrics": metrics} | servers | tables)


def _with_files(settings: TableConfig, folder: Path) -> TableConfig:
    """The settings with the paths of schema files made absolute."""
    found = {name: getattr(settings, name) for name in ("key_schemas", "value_schemas")}
    return settings.model_copy(
        update={name: tuple(_absolute(file, folder) for file in files) for name, files in found.items() if files}
    )


def _kafka_resolved(kafka: KafkaConfig, folder: Path) -> KafkaConfig:
    update: dict[str, Any] = {}
    if kafka.tls:
        update["tls"] = _tls_resolved(kafka.tls, folder)
    if kafka.oauth:
        update["oauth"] = _secrets_resolved(kafka.oauth, folder)
    if kafka.kerberos:
        update["kerberos"] = kafka.kerberos.model_copy(update={"keytab": _absolute(kafka.kerberos.keytab, folder)})
    return _secrets_resolved(kafka, folder).model_copy(update=update)


def _registry_resolved(registry: RegistryConfig, folder: Path) -> RegistryConfig:
    update: dict[str, Any] = {"tls": _tls_resolved(registry.tls, folder)}
    if registry.proxy:
        update["proxy"] = _reference_resolved(registry.proxy, folder)
    if registry.auth:
        (name,) = registry.auth.model_dump(exclude_none=True)
        way = _secrets_resolved(getattr(registry.auth, name), folder)
        update["auth"] = registry.auth.model_copy(update={name: way})
    return registry.model_copy(update=update)


def _tls_resolved(tls: Settings, folder: Path) -> Settings:
    """The settings with the paths of certificates made absolute."""
    given = {name: value for name in ("ca", "cert", "key") if (value := getattr(tls, name))}
    return tls.model_copy(
        update={
            name: _reference_resolved(value, folder) if is_reference(value) else _absolute(value, folder)
            for name, value in given.items()
        }
    )


def _secrets_resolved(login: Settings, folder: Path) -> Settings:
    """The settings with the paths of files that hold their secrets made absolute."""
    names = ("password", "token", "client_secret", "connection_string")
    given = {name: reference for name in names if (reference := getattr(login, name, None))}
    return login.model_copy(update={name: _reference_resolved(value, folder) for name, value in given.items()})


def _reference_resolved(reference: str, folder: Path) -> str:
    kind, _, place = reference.partition(":")
    return f"file:{_absolute(place, folder)}" if kind == "file" else reference


def _absolute(path: str, folder: Path) -> str:
    return path if "://" in path else str((folder / path).resolve())
