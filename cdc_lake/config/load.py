"""Load the settings of a run from one YAML file, and check them before anything starts.

Precedence: flag > environment (`CDC_LAKE__KAFKA__BOOTSTRAP_SERVERS=…`) > file > default. The file is that of
`--config`, else of `CDC_LAKE_CONFIG`, else `cdc-lake.yml` or `conf/cdc-lake.yml` in the working directory or the
nearest folder above it. Its relative paths start at its folder; without a file, at the working directory. `ssm:NAME`
names a parameter of AWS' Parameter Store instead of a file; its relative paths start at `conf` in the working
directory, where a job has the package's conf/.
"""

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from cdc_lake import aws
from cdc_lake.config.base import SSM, in_words
from cdc_lake.config.settings import Config
from cdc_lake.errors import ConfigError

logger = logging.getLogger(__name__)
PACKAGE = Path(__file__).resolve().parents[1]
"""The folder of cdc_lake: `jobs` has the files for spark-submit, `conf` the jars' locks and the demo's settings."""
_NAMES = ("cdc-lake.yml", "conf/cdc-lake.yml")
_PREFIX, _BETWEEN = "CDC_LAKE__", "__"


def config_path(path: str | Path | None = None) -> Path | None:
    """The configuration file in effect; None without one.

    Raises:
        ConfigError: the named file does not exist.
    """
    if asked := path or os.environ.get("CDC_LAKE_CONFIG"):
        if not Path(asked).is_file():
            cure = "name another one with --config or CDC_LAKE_CONFIG, or write one with `cdc-lake init`"
            raise ConfigError(str(asked), "the configuration file does not exist", cure)
        return Path(asked).resolve()
    here = Path.cwd()
    files = (folder / name for folder in (here, *here.parents) for name in _NAMES)
    return next((file.resolve() for file in files if file.is_file()), None)


def load_config(path: str | Path | None = None) -> Config:
    """Read and check the configuration file, and make its paths absolute.

    Args:
        path: the file's path, or `ssm:NAME` for a parameter of AWS' Parameter Store.

    Raises:
        ConfigError: the file is missing, is not YAML, or has an unknown key or a wrong value; or `lake.root` from
            Parameter Store is a local folder.
        InstallationError: boto3 is not installed.
        InfrastructureError: AWS does not respond.
    """
    return _checked(*_read(path))


class Setting(NamedTuple):
    """A setting in effect.

    Attributes:
        key: the keys that lead to it, the section's first.
        value: as JSON has it, with a reference in place of a secret.
        origin: `<file>:<line>`, the environment variable, or `default`.
    """

    key: tuple[str, ...]
    value: Any
    origin: str


def settings_in_effect(path: str | Path | None = None) -> list[Setting]:
    """Each setting with its value and origin.

    Args, Raises: see `load_config`.
    """
    where, folder, text = _read(path)
    config = _checked(where, folder, text)
    lines = {key: f"{Path(where).name}:{line}" for key, line in _lines(yaml.compose(text, Loader=yaml.SafeLoader))}
    names = {key: name for name, setting in _variables() for key, _ in _leaves(setting)}
    values = config.model_dump(mode="json", exclude={"tables"})
    tables = config.model_dump(mode="json", include={"tables"}, exclude_unset=True)
    return [
        Setting(key, value, names.get(key) or lines.get(key) or "default")
        for key, value in (*_leaves(values), *_leaves(tables))
    ]


def _read(path: str | Path | None) -> tuple[str, Path, str]:
    """The configuration file's path or parameter, the folder at which its relative paths start, and its text."""
    asked = str(path or os.environ.get("CDC_LAKE_CONFIG", ""))
    if asked.startswith(SSM):
        return asked, Path("conf").resolve(), aws.parameter(asked.removeprefix(SSM))
    file = config_path(path)
    if file is None:
        return "the settings", Path.cwd(), ""
    try:
        return str(file), file.parent, file.read_text(encoding="utf-8")
    except UnicodeDecodeError as exc:
        raise ConfigError(str(file), f"byte {exc.start} is not UTF-8", "save the file as UTF-8") from None


def _checked(where: str, folder: Path, text: str) -> Config:
    content = read_yaml(where, text) or {}
    if not isinstance(content, dict):
        raise ConfigError(where, "the file is not a mapping of keys to values", "see docs/reference/settings.md")
    try:
        config = Config.model_validate(_merged(content, _from_environment()), context={"folder": folder})
    except ValidationError as exc:
        what = in_words(exc, Config)
        raise ConfigError(where, what, "correct the file, or the CDC_LAKE__ variable of that name") from exc
    if where.startswith(SSM) and "://" not in config.lake.root:
        what = "settings from Parameter Store cannot use a local `lake.root`"
        raise ConfigError(where, what, "set a URL such as s3://bucket/lake")
    for warning in config.lake.warnings:
        logger.warning("%s: %s", where, warning)
    return config


def read_yaml(where: str, text: str) -> Any:
    """Parse a YAML text. The error does not show the text, which may contain secrets.

    Raises:
        ConfigError: it is not YAML.
    """
    try:
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        at = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = re.sub(r"'(?!<)[^']{2,}'", "…", exc.problem or exc.context or "")
        what = f"this is not YAML: {at}{problem}"
    except yaml.YAMLError:
        what = "this is not YAML: it has a control character"
    except ValueError:
        what = "this is not YAML: a date or a number in it is invalid"
    raise ConfigError(where, what, "correct the file")


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two nested mappings. If both have a value for a key, `above` wins."""
    both = {
        key: _merged(below[key], value)
        for key, value in above.items()
        if isinstance(value, Mapping) and isinstance(below.get(key), Mapping)
    }
    return {**below, **above, **both}


def _from_environment() -> dict[str, Any]:
    """The settings in environment variables. An inner key's variable overrides that of the mapping around it."""
    settings: dict[str, Any] = {}
    for _, setting in _variables():
        settings = _merged(settings, setting)
    return settings


def _variables() -> Iterator[tuple[str, dict[str, Any]]]:
    """The environment variables with settings, and each variable's part of the settings; outer keys first."""
    for name, text in sorted(os.environ.items(), key=lambda variable: variable[0].count(_BETWEEN)):
        if name.upper().startswith(_PREFIX):
            value = _value(text)
            for step in reversed(name[len(_PREFIX) :].lower().split(_BETWEEN)):
                value = {step: value}
            yield name, value


def _leaves(settings: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The values of nested mappings, each with the keys that lead to it. Lists are values."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*above, key))
        else:
            yield (*above, key), value


def _lines(node: yaml.Node | None, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    """The keys of nested mappings in YAML, and the line of each."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield (*above, key.value), key.start_mark.line + 1
            yield from _lines(value, (*above, key.value))


def _value(text: str) -> Any:
    """A variable's value: lists and mappings are parsed as JSON, other texts stay texts."""
    if text.lstrip().startswith(("[", "{")):
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return text  # such as `{prefix}_{layer}`
    return text
