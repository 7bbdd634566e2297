"""Pages, messages, help texts, settings, docstrings and comments use the field's words; test names are short.

A replaced word is allowed in backquotes, in the name of an attribute that a docstring describes, and in a message
without a space, such as the Unix user `nobody`.
"""

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from pages import DOCS, PART
from pages.commands import _leaves as commands

from cdc_lake.cli.app import app

pytestmark = pytest.mark.core

CHECKOUT = DOCS.parent
REPLACED = (
    *("anew", "mend", "mended", "mends", "whatever", "beside", "neighbours?", "neighbors?", "held in", "is told"),
    *("says so", "set aside", "let go of", "stands in", "come to", "what it costs", "made anew", "lone tombstones?"),
    *("folded again", "in our words", "is no folder", "nobody", "nobody's"),
)
WORDS = re.compile(rf"\b(?:{'|'.join(REPLACED)})\b", re.IGNORECASE)
IN_MESSAGES = re.compile(
    rf"{WORDS.pattern}|\b(?:told|says that|looked? over|patience|doubts?|heirs?|left out|leave \S+ out|put back)\b"
    r"|(?<!there )\bis no (?!longer\b|more\b)",
    re.IGNORECASE,
)
"""More words in messages, help texts and descriptions, which are short. "X is no Y" is "X is not a Y"."""
TERSE = (
    *("told", "held", "stretch(?:es)?", "lone (?!surrogates)", "whoever", "ours?", "yours", "of what", "in words"),
    *("another one that", "of those (?:of|that)", "(?:another|others) than (?:before|it|that)", "are others"),
    *("(?:are|is|was|were) to be", "were there", "says? (?:its|no|so|what|where|which|who)", "rests? on", "see that"),
    *("nothing (?:knows|says|tells)", "do(?:es)? not answer", "no use for", "passed over", r"leaves? (?:\S+ ){0,4}out"),
    *("go(?:es)? (?:into|over) (?:an?|the)", r"(?<!there )(?:are|is) no (?!longer\b|more\b)"),
)
MANNER = re.compile(rf"{WORDS.pattern}|\b(?:{'|'.join(TERSE)})\b|, an? [\w ]+ each\b", re.IGNORECASE)
"""Terse or inverted English in docstrings, comments and messages: write subject, verb, object."""
DANGLING = re.compile(r"\A(?:Of|Those)\b|^ +(?:\w+, )*\w+: (?:of|that|those)\b|\b(?:are|is) gone\b", re.MULTILINE)
"""Docstrings and comments that lack a noun: write `size: the size of the file`, not `size: of the file`."""
ATTRIBUTE = re.compile(r"^ +(?:\w+, )*\w+:", re.MULTILINE)
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
PAGES = sorted([*DOCS.rglob("*.md"), CHECKOUT / "README.md", CHECKOUT / "CONTRIBUTING.md"])
MODULES = sorted((CHECKOUT / "cdc_lake").rglob("*.py"))
LONGEST_NAME = 60


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_page_uses_the_words_of_the_glossary(page: Path) -> None:
    """Generated parts are skipped, because they come from help texts and descriptions."""
    written = CODE.sub("", PART.sub("", page.read_text(encoding="utf-8")))

    assert WORDS.findall(written) == []


def messages(module: Path) -> Iterator[str]:
    """The texts of a module that users may read: literals with a space, without docstrings and code in backquotes."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Constant) and id(node) not in documentation else None
        if isinstance(value, str) and " " in value.strip():
            yield CODE.sub("", value)


def replaced_words(module: Path) -> set[str]:
    """The replaced words in a module's messages."""
    return {word.lower().strip() for text in messages(module) for word in IN_MESSAGES.findall(text)}


def test_messages_use_the_words_of_the_glossary() -> None:
    found = {str(module.relative_to(CHECKOUT)): replaced_words(module) for module in MODULES}

    assert {module: words for module, words in found.items() if words} == {}


def documentation(module: Path) -> Iterator[str]:
    """The docstrings and comments of a module, without code in backquotes."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield CODE.sub("`code`", node.value.value)
    with module.open(encoding="utf-8") as lines:
        for token in tokenize.generate_tokens(lines.readline):
            if token.type == tokenize.COMMENT:
                yield CODE.sub("`code`", token.string.lstrip("# "))


def manners(module: Path) -> set[str]:
    """What is terse or inverted in a module's docstrings, comments and messages."""
    found = {match[0] for text in messages(module) for match in MANNER.finditer(text)}
    for text in documentation(module):
        sentences = " ".join(ATTRIBUTE.sub(" ", text).split())
        found |= {match[0].strip() for match in (*MANNER.finditer(sentences), *DANGLING.finditer(text))}
    return found


def test_terse_english_is_found(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    text = "Those of\n    the table.\n\n    Attributes:\n        gone: of what was\n            told."
    module.write_text(f'"""{text}"""\nraise ValueError("no name says its region")  # `told` beside it\n')

    assert manners(module) == {"Those", "gone: of", "of what", "told", "says its", "beside"}


def test_package_is_written_in_plain_english() -> None:
    found = {str(module.relative_to(CHECKOUT)): manners(module) for module in MODULES}

    assert {module: words for module, words in found.items() if words} == {}


def help_texts() -> Iterator[tuple[str, str]]:
    """Each command's help and that of its flags, by the command."""
    root: Any = typer.main.get_command(app)
    for name, command in commands(root, "cdc-lake"):
        yield name, command.help or ""
        yield from ((name, parameter.help or "") for parameter in command.params)


def test_help_texts_use_the_words_of_the_glossary() -> None:
    found = {(name, word) for name, text in help_texts() for word in IN_MESSAGES.findall(CODE.sub("", text))}

    assert found == set()


def test_words_are_found_in_messages(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""Nobody."""\nraise ValueError(f"{1} is no table; mend it")\nNAME = "beside"\n')

    assert [word for text in messages(module) for word in IN_MESSAGES.findall(text)] == ["is no ", "mend"]


def docstrings(module: Path) -> Iterator[str]:
    """The docstrings of a module, without code in backquotes."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield CODE.sub("", ast.get_docstring(node) or "")


def test_docstrings_of_tests_use_the_words_of_the_glossary() -> None:
    found = {
        (str(module.relative_to(CHECKOUT)), word)
        for module in (CHECKOUT / "tests").rglob("*.py")
        for text in docstrings(module)
        for word in WORDS.findall(text)
    }

    assert found == set()


def test_names_of_tests_are_short() -> None:
    long = []
    for file in (CHECKOUT / "tests").rglob("test_*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        names = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        long += [name for name in names if name.startswith("test_") and len(name) > LONGEST_NAME]

    assert long == []


def test_glossary_is_complete_and_sorted() -> None:
    text = (DOCS / "reference" / "glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \*\*(.+?)\*\* \| (.+) \|$", text, re.MULTILINE)

    assert len(rows) >= 40
    assert [term for term, _ in rows] == sorted((term for term, _ in rows), key=str.lower)
    assert [term for term, meaning in rows if not re.fullmatch(r"[A-Z`<].*\.", meaning)] == []
