"""A terminal on which a test answers a command's question."""

import io
from collections.abc import Callable


class Terminal(io.StringIO):
    """Replace `sys.stdin` by it.

    Args:
        answer: the typed text.
        meanwhile: called before that, while the command waits.
    """

    def __init__(self, answer: str, meanwhile: Callable[[], object] | None = None) -> None:
        super().__init__(f"{answer}\n")
        self.is_asked = False
        self._meanwhile = meanwhile

    def isatty(self) -> bool:
        return True

    def readline(self, size: int | None = -1, /) -> str:
        self.is_asked = True
        if self._meanwhile:
            self._meanwhile()
        return super().readline(-1 if size is None else size)
