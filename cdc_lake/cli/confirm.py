"""Asking before a command changes what cannot simply be changed back."""

import sys

import typer

from cdc_lake.errors import ConfigError


def confirmed(question: str, *, yes: bool, on_stderr: bool) -> bool:
    """Whether to go on: `--yes` was given, or the answer on the terminal is yes.

    Args:
        question: what is asked; the reader has seen what it is about.
        yes: whether `--yes` was given.
        on_stderr: ask there, because stdout is for JSON.

    Raises:
        ConfigError: there is no terminal to ask on.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise ConfigError(
            "--yes", "nothing was changed, because there is no terminal to confirm on", "check the above, then pass it"
        )
    return typer.confirm(question, err=on_stderr)
