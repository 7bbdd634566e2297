"""Edits of Python code that break a rule on purpose.

Code is found by its structure, in a function that is found by its name. So layout, comments and parentheses do not
matter, nor does the module or class that has the function.
"""

import ast
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple

import pytest


class Edit(NamedTuple):
    """A change of one expression or statement.

    Attributes:
        name: of the function or constant that has the code, also with its class: `step`, `_KeyRun.take`, `LIMITS`.
        old: the code.
        new: its replacement; none to remove an operand of `and`, `or`, `&` or `|`.
    """

    name: str
    old: str
    new: str | None


Edits = tuple[Edit, ...]


def replaced(name: str, old: str, *, by: str) -> Edits:
    """Replace an expression or a statement."""
    return (Edit(name, old, by),)


def without_operand(name: str, operand: str) -> Edits:
    """Remove an operand of `and`, `or`, `&` or `|`."""
    return (Edit(name, operand, None),)


def edited(folder: Path, edits: Edits) -> list[tuple[Path, ast.Module, str]]:
    """Apply edits to the modules in a folder: by edit, the file, the edited module, and the function's dotted name.

    Raises:
        LookupError: the functions of a name do not have the code, or have it several times.
    """
    names = [edit.name.rpartition(".")[2] for edit in edits]
    starts = [start for name in names for start in (f"def {name}(", f"\n{name}")]
    trees = {path: ast.parse(text) for path, text in _texts(folder).items() if any(start in text for start in starts)}
    found = []
    for edit in edits:
        places = [
            (path, tree, name, _Editor(edit).edit(node))
            for path, tree in trees.items()
            for name, node in _definitions(tree)
            if f".{name}".endswith(f".{edit.name}")
        ]
        if not places:
            raise LookupError(f"{folder.name}/ has no `{edit.name}`, whose code was to be edited: {edit.old}")
        if (count := sum(place[-1] for place in places)) != 1:
            what = "operand" if edit.new is None else "code"
            raise LookupError(f"`{edit.name}` in {folder.name}/ has this {what} {count} times, not once: {edit.old}")
        found += [(path, tree, name) for path, tree, name, is_edited in places if is_edited]
    return found


def break_code(patch: pytest.MonkeyPatch, package: ModuleType, edits: Edits) -> None:
    """Let functions of a package run their edited code, for all modules of this process that have imported them."""
    (folder,) = map(Path, package.__path__)
    for path, tree, name in edited(folder, edits):
        module = import_module(".".join([package.__name__, *path.relative_to(folder).with_suffix("").parts]))
        code = compile(tree, path, "exec")
        for part in name.split("."):
            (code,) = (one for one in code.co_consts if isinstance(one, CodeType) and one.co_name == part)
        patch.setattr(attrgetter(name)(module), "__code__", code)


@cache
def _texts(folder: Path) -> dict[Path, str]:
    return {path: path.read_text(encoding="utf-8") for path in folder.rglob("*.py")}


def _definitions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """The functions, classes and variables in a module, with their dotted names."""
    for inner in getattr(node, "body", ()):
        for target in (inner, getattr(inner, "target", None), *getattr(inner, "targets", ())):
            if name := getattr(target, "name", getattr(target, "id", None)):
                yield f"{prefix}{name}", inner
                yield from _definitions(inner, f"{prefix}{name}.")


def _parsed(code: str) -> ast.AST:
    (statement,) = ast.parse(code).body
    return statement.value if isinstance(statement, ast.Expr) else statement


class _Editor(ast.NodeTransformer):
    """Applies an edit wherever a definition has its code, and counts the places."""

    def __init__(self, edit: Edit) -> None:
        self._old = ast.dump(_parsed(edit.old))
        self._new = None if edit.new is None else _parsed(edit.new)
        self._count = 0

    def edit(self, node: ast.AST) -> int:
        """Edit a definition in place; the number of changes."""
        self.generic_visit(node)
        return self._count

    def visit(self, node: ast.AST) -> ast.AST:
        if self._new is None:
            return self.generic_visit(self._without_operand(node))
        if ast.dump(node) != self._old:
            return self.generic_visit(node)
        self._count += 1
        return self._new

    def _without_operand(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.BoolOp):
            operands = node.values
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr):
            operands = [node.left, node.right]
        else:
            return node
        rest = [one for one in operands if ast.dump(one) != self._old]
        self._count += len(operands) - len(rest)
        if isinstance(node, ast.BoolOp):
            node.values = rest
        return rest[0] if len(rest) == 1 else node
