"""Read the settings in a page of docs/, and those of the code."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel


def page(name: str) -> str:
    """The text of a page."""
    return (Path(__file__).parents[2] / "docs" / name).read_text(encoding="utf-8")


def examples(page: str) -> list[str]:
    """The configurations in a page."""
    return re.findall(r"^```yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


def settings(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, Any]]:
    """Every setting with its default."""
    for name, field in model.model_fields.items():
        kinds = [field.annotation, *get_args(field.annotation)]
        inner = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
        if inner:
            yield from settings(inner, f"{prefix}.{name}")
        else:
            yield f"{prefix}.{name}", field.get_default(call_default_factory=True)
