"""Pages, messages, help texts and docstrings call settings by the names that they have."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import CHECKOUT

from cdc_lake.config import Config, TableConfig
from cdc_lake.config.base import Model, _inner_models, _keys

pytestmark = pytest.mark.core

PACKAGE = CHECKOUT / "cdc_lake"
MODULES = sorted(PACKAGE.rglob("*.py"))
PAGES = sorted([*(CHECKOUT / "docs").rglob("*.md"), CHECKOUT / "README.md"])


def names(model: type[Model], group: str = "") -> Iterator[str]:
    """The settings of a model, with dots between the groups and the name."""
    yield from (f"{group}{key}" for key in _keys(model))
    for key, inner in _inner_models(model):
        yield from names(inner, f"{group}{key}.")


SETTINGS = {*names(Config), *names(TableConfig)}
GROUPS = sorted({name.partition(".")[0] for name in SETTINGS if "." in name}, key=len, reverse=True)
IN_LISTS = ("storage.", "quality.expectations.", "defaults.", "tables.")
NEED_GROUP = {name.rpartition(".")[2] for name in SETTINGS if "." in name and not name.startswith(IN_LISTS)}
DOTTED = re.compile(rf"(?<![\w./-])(?:{'|'.join(GROUPS)})(?:\.[a-z_]+)+(?![\w(*/-])")
FILE_ENDINGS = (".py", ".yml")
OTHERS = {"kafka.offset"}  # in an option of kafka-delta-ingest
UNDERSCORED = re.compile(r"(?<![\w.])[a-z]+(?:_[a-z]+)+(?![\w(])")
IN_BACKQUOTES = re.compile(r"`[^`\n]+`")
IN_THE_SETTINGS = re.compile(r"`([\w.]+)` in the settings")


def unknown(text: str) -> Iterator[str]:
    """Names that look like settings in their groups and are none."""
    for name in (*DOTTED.findall(text), *IN_THE_SETTINGS.findall(text)):
        is_module = (PACKAGE / f"{name.replace('.', '/')}.py").is_file() or name.endswith(FILE_ENDINGS)
        is_of_connector = ".converter" in name
        if not (name in SETTINGS | OTHERS or is_module or is_of_connector):
            yield name


def misnamed(module: Path) -> Iterator[str]:
    """What a module's texts call settings that have another name: one without its group.

    In docstrings, only names in backquotes count. Identifiers and columns of the module are no settings.
    """
    tree = ast.parse(module.read_text(encoding="utf-8"))
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    own = {text.value for text in texts} | {
        getattr(node, part, None) for node in ast.walk(tree) for part in ("id", "arg", "attr", "name")
    }
    in_config = module.parent.name == "config"
    for text in texts:
        if " " not in text.value.strip():
            continue
        is_docstring = id(text) in docstrings
        read = " ".join(IN_BACKQUOTES.findall(text.value)) if is_docstring else text.value
        yield from unknown(read)
        bare = set(UNDERSCORED.findall(read)) & NEED_GROUP
        yield from bare - (own if is_docstring or in_config else set())


def test_modules_name_settings_that_exist() -> None:
    found = {str(module.relative_to(CHECKOUT)): set(misnamed(module)) for module in MODULES}

    assert {module: wrong for module, wrong in found.items() if wrong} == {}


def test_pages_name_settings_that_exist() -> None:
    found = {
        str(page.relative_to(CHECKOUT)): set(unknown(" ".join(IN_BACKQUOTES.findall(page.read_text("utf-8")))))
        for page in PAGES
    }

    assert {page: wrong for page, wrong in found.items() if wrong} == {}
