"""`cdc-lake init`: write the files of a user's project. The other files in this folder are their templates."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import join
from string import Template
from typing import Any

import yaml
from pydantic import ValidationError

from cdc_lake.brokers import broker_login
from cdc_lake.config import Config, in_words
from cdc_lake.errors import ConfigError
from cdc_lake.registries import open_registry
from cdc_lake.sources.kafka import Broker

SETTINGS = "cdc-lake.yml"
_TEMPLATES = Path(__file__).parent
_MODEL = "gold/row_count.sql"
_SECONDS, _ATTEMPTS = 5.0, 1
"""How long to wait for a server that may have another address or type."""


def check_has_none(folder: Path) -> None:
    """Check that a folder has no settings yet.

    Raises:
        ConfigError: it has.
    """
    if (folder / SETTINGS).exists():
        raise ConfigError(str(folder / SETTINGS), "it exists already", "change it, or name another folder")


@dataclass(frozen=True)
class Servers:
    """The servers of a project. An address that is not valid raises `ConfigError`.

    Attributes:
        brokers: `host:port`, several separated by commas.
        registry: URL of the schema registry.
    """

    brokers: str
    registry: str

    def __post_init__(self) -> None:
        _checked({"kafka": {"bootstrap_servers": self.brokers}, "registry": {"url": self.registry}})

    def topics(self) -> list[str]:
        """The names of all topics.

        Raises:
            ConfigError, InfrastructureError: the brokers refuse, or do not respond.
        """
        kafka = _checked({"kafka": {"bootstrap_servers": self.brokers, "timeout_seconds": _SECONDS}}).kafka
        return Broker(kafka.address, kafka.timeout_seconds, broker_login(kafka)).topics()

    def registry_type(self) -> str:
        """The value of `registry.type` for the registry that answers.

        Raises:
            ConfigError: it is of neither type.
            InfrastructureError: it does not respond.
        """
        types = ("ccompat",) if "/ccompat/" in self.registry else ("apicurio", "confluent")
        for kind in types:
            own = {"type": kind, "url": self.registry, "timeout_seconds": _SECONDS, "attempts": _ATTEMPTS}
            try:
                open_registry(_checked({"registry": own}).registry).check()
            except ConfigError:
                if kind == types[-1]:
                    raise
            else:
                return kind
        raise AssertionError("the last type returns or raises")


def suggested_tables(topics: Sequence[str]) -> list[str]:
    """Globs of the topics that Debezium may have written, `<prefix>.<schema>.<table>`; most topics first."""
    schemas = Counter(topic.rpartition(".")[0] for topic in topics if topic.count(".") == 2)
    return [f"{schema}.*" for schema, _ in schemas.most_common()]


@dataclass(frozen=True)
class Project:
    """What the files of a project depend on.

    Attributes:
        registry_type: the value of `registry.type`.
        tables: names or globs of the topics to replicate.
        example: one of these topics; None if none is known, and then there is no gold model.
    """

    servers: Servers
    registry_type: str
    lake: str
    tables: Sequence[str]
    example: str | None

    def write(self, folder: Path) -> Iterator[tuple[str, bool]]:
        """Write the files that do not exist yet. Yields each file's name, and whether it was written.

        Raises:
            ConfigError: the settings are not valid.
        """
        values = self._values(folder)
        _checked(yaml.safe_load(_filled(SETTINGS, values)))
        for name in (SETTINGS, *([_MODEL] if self.example else ()), ".gitignore", "README.md", "crontab"):
            file = folder / name
            if is_new := not file.exists():
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(_filled(name.removeprefix("."), values), encoding="utf-8")
            yield name, is_new

    def _values(self, folder: Path) -> dict[str, str]:
        topic = self.example or self.tables[0]
        prefix = topic.partition(".")[0]
        texts = {"brokers": self.servers.brokers, "registry": self.servers.registry, "lake": self.lake, "topic": topic}
        return {
            **{name: _as_yaml(text) for name, text in texts.items()},
            "registry_type": self.registry_type,
            "prefix": _as_yaml(prefix),
            "variable": f"{prefix.upper().replace('-', '_')}_URL",
            "folder": join([str(folder.resolve())]),
            "flags": join(part for table in self.tables for part in ("--table", table)),
        }


def _filled(template: str, values: dict[str, str]) -> str:
    return Template((_TEMPLATES / template).read_text(encoding="utf-8")).substitute(values)


def _as_yaml(text: str) -> str:
    """A text as a YAML scalar, quoted only if necessary."""
    return yaml.safe_dump(text, width=1000).removesuffix("\n").removesuffix("\n...")


def _checked(settings: dict[str, Any]) -> Config:
    try:
        return Config.model_validate(settings)
    except ValidationError as exc:
        raise ConfigError("cdc-lake init", in_words(exc, Config), "correct the answer or the flag") from exc
