"""A broken rule."""

import shlex
from typing import NamedTuple

from support.edits import Edits


class Mutation(NamedTuple):
    """A rule that is broken on purpose.

    Attributes:
        effect: what happens then.
        check: the command that must fail: `pytest` or `conformance`, with a test or a log and further arguments.
        edits: what breaks the rule.
    """

    effect: str
    check: str
    edits: Edits

    def tool(self) -> tuple[str, list[str]]:
        """The check's tool, and its arguments."""
        tool, *arguments = shlex.split(self.check)
        return tool, arguments
