"""The settings of a run: one YAML file, checked before anything starts.

Precedence: flag > environment (`CDC_LAKE__KAFKA__BOOTSTRAP_SERVERS=…`) > file > default. The file is `--config`, else
`CDC_LAKE_CONFIG`, else `conf/cdc-lake.yml` in the working directory, else the one of the checkout this package runs
from. Relative paths in it start at the folder that holds the file. Instead of a file it may be a parameter of AWS'
Parameter Store, `ssm:NAME`; then they start at `conf` in the working directory, where a job has the package's conf/.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from cdc_lake import aws
from cdc_lake.config.base import in_words
from cdc_lake.config.secrets import SSM
from cdc_lake.config.settings import Config
from cdc_lake.errors import ConfigError

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
        raise ConfigError(where, f"this is not YAML: {exc}", "correct the file") from exc
    if not isinstance(content, dict):
        raise ConfigError(where, "the file must hold keys and values", "see docs/settings.md")
    settings = _merged(content, _from_environment())
    try:
        config = Config.model_validate(settings, context={"folder": folder})
    except ValidationError as exc:
        raise ConfigError(
            where, in_words(exc, Config), "correct the file, or the CDC_LAKE__ variable of that name"
        ) from exc
    if asked.startswith(SSM) and "://" not in config.lake.root:
        what = "settings from Parameter Store cannot use a local `lake.root`"
        raise ConfigError(where, what, "set a URL such as s3://bucket/lake")
    return config


def _from_environment() -> dict[str, Any]:
    """The settings in variables, nested; a variable of an inner key wins over one of the mapping around it."""
    found: dict[str, Any] = {}
    for name, text in sorted(os.environ.items(), key=lambda variable: variable[0].count(_BETWEEN)):
        if name.upper().startswith(_PREFIX):
            value = _value(text)
            for key in reversed(name[len(_PREFIX) :].lower().split(_BETWEEN)):
                value = {key: value}
            found = _merged(found, value)
    return found


def _value(text: str) -> Any:
    """Lists and mappings are JSON; other texts are taken as they are."""
    if text.lstrip().startswith(("[", "{")):
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return text  # such as `{prefix}_{layer}`
    return text


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both, mapping by mapping; `above` wins."""
    both = {key: _merged(below[key], value) for key, value in above.items() if _are_mappings(below.get(key), value)}
    return {**below, **above, **both}


def _are_mappings(*values: Any) -> bool:
    return all(isinstance(value, Mapping) for value in values)
