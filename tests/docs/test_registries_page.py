"""docs/registries.md names every setting of the registry, and its examples are accepted."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from cdc_lake.config import RegistryConfig, load_config

PAGE = (Path(__file__).parents[2] / "docs" / "registries.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def settings(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, object]]:
    """Every setting with its default."""
    for name, field in model.model_fields.items():
        kinds = [field.annotation, *get_args(field.annotation)]
        inner = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
        if inner:
            yield from settings(inner, f"{prefix}.{name}")
        else:
            yield f"{prefix}.{name}", field.get_default(call_default_factory=True)


def test_every_setting_is_in_the_table_with_its_default_and_nothing_else_is() -> None:
    rows = dict(
        re.findall(r"^\| `(registry\.[a-z_.]+)` \| ([^|]*?) ?\|", PAGE.partition("## Settings")[2], re.MULTILINE)
    )
    known = dict(settings(RegistryConfig, "registry"))

    assert set(rows) == set(known)
    for name, shown in rows.items():
        assert shown.strip("` ") in (
            str(known[name]),
            f"{known[name]:g}" if isinstance(known[name], float) else "none",
            "",
        )


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_is_accepted(tmp_path: Path, example: str) -> None:
    file = tmp_path / "cdc-lake.yml"
    file.write_text(example)

    assert load_config(file).registry != RegistryConfig()


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 7
