"""docs/emr.md names every setting of EMR with its default, and its examples are accepted."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from cdc_lake.config import Config, EmrConfig, load_config

PAGE = (Path(__file__).parents[2] / "docs" / "emr.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def settings(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, Any]]:
    """Every setting with its default."""
    for name, field in model.model_fields.items():
        kinds = [field.annotation, *get_args(field.annotation)]
        inner = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
        if inner:
            yield from settings(inner, f"{prefix}.{name}")
        else:
            yield f"{prefix}.{name}", field.get_default(call_default_factory=True)


def shown(default: Any) -> str:
    """A default as the page writes it."""
    if default is PydanticUndefined:
        return ""
    if default in (None, {}, ()):
        return "none"
    return f"`{default}`" if isinstance(default, str) else str(default).lower()


def rows() -> Iterator[tuple[str, str]]:
    """The settings on the page; several in a row have a default each, or the same."""
    for names, defaults in re.findall(r"^\| ((?:`emr\.[a-z_.]+`(?:, )?)+) \| ([^|]*?) ?\|", PAGE, re.MULTILINE):
        found, said = re.findall(r"`([^`]+)`", names), defaults.split(", ")
        yield from zip(found, said * len(found) if len(said) == 1 else said, strict=len(said) > 1)


def test_every_setting_is_there_with_its_default_and_nothing_else_is() -> None:
    assert dict(rows()) == {name: shown(default) for name, default in settings(EmrConfig, "emr")}


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_are_accepted(example: str, tmp_path: Path) -> None:
    file = tmp_path / "cdc-lake.yml"
    file.write_text(example, encoding="utf-8")

    assert load_config(file) != Config()


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 4
