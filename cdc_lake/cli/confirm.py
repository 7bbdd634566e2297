"""The confirmation prompt of commands whose changes are hard to undo."""

import sys

import typer

from cdc_lake.errors import ConfigError


def confirmed(question: str, *, yes: bool, on_stderr: bool) -> bool:
    """Whether to continue: `--yes` was passed, or the user answered yes.

    Args:
        question: the prompt; the consequences have been shown.
        yes: whether `--yes` was passed.
        on_stderr: prompt on stderr, because stdout is for JSON.

    Raises:
        ConfigError: there is no terminal to prompt on.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise ConfigError(
            "--yes",
            "nothing was changed, because there is no terminal to confirm on",
            "check the output above, then pass `--yes`",
        )
    return typer.confirm(question, err=on_stderr)
