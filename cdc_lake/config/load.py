"""Load the settings of a run from one YAML file, and check them before anything starts.

Precedence: flag > environment (`CDC_LAKE__KAFKA__BOOTSTRAP_SERVERS=…`) > file > default. The file is the first of:
`--config`, `CDC_LAKE_CONFIG`, `conf/cdc-lake.yml` in the working directory, `conf/cdc-lake.yml` of this checkout. Its
relative paths start at its folder. `ssm:NAME` names a parameter of AWS' Parameter Store instead of a file; its relative
paths start at `conf` in the working directory, where a job has the package's conf/.
"""

import json
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from cdc_lake import aws
from cdc_lake.config.base import SSM, in_words
from cdc_lake.config.settings import Config
from cdc_lake.errors import ConfigError

logger = logging.getLogger(__name__)
CHECKOUT = Path(__file__).resolve().parents[2]
_PREFIX, _BETWEEN = "CDC_LAKE__", "__"


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
        str(candidates[0]), "the configuration file does not exist", "name one with --config or CDC_LAKE_CONFIG"
    )


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
    asked = str(path or os.environ.get("CDC_LAKE_CONFIG", ""))
    if asked.startswith(SSM):
        where, folder, text = asked, Path("conf").resolve(), aws.parameter(asked.removeprefix(SSM))
    else:
        file = config_path(path)
        where, folder = str(file), file.parent
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError as exc:
            raise ConfigError(where, f"byte {exc.start} is not UTF-8", "save the file as UTF-8") from None
    content = read_yaml(where, text) or {}
    if not isinstance(content, dict):
        raise ConfigError(where, "the file is not a mapping of keys to values", "see docs/reference/settings.md")
    try:
        config = Config.model_validate(_merged(content, _from_environment()), context={"folder": folder})
    except ValidationError as exc:
        what = in_words(exc, Config)
        raise ConfigError(where, what, "correct the file, or the CDC_LAKE__ variable of that name") from exc
    if asked.startswith(SSM) and "://" not in config.lake.root:
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
    for name, text in sorted(os.environ.items(), key=lambda variable: variable[0].count(_BETWEEN)):
        if name.upper().startswith(_PREFIX):
            value = _value(text)
            for step in reversed(name[len(_PREFIX) :].lower().split(_BETWEEN)):
                value = {step: value}
            settings = _merged(settings, value)
    return settings


def _value(text: str) -> Any:
    """A variable's value: lists and mappings are parsed as JSON, other texts stay texts."""
    if text.lstrip().startswith(("[", "{")):
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return text  # such as `{prefix}_{layer}`
    return text
