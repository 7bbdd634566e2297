"""A terminal on which somebody answers a command's question."""

import io
from collections.abc import Callable


class Terminal(io.StringIO):
    """Put it in the place of `sys.stdin`.

    Args:
        answer: what is typed.
        meanwhile: done before that, while the question waits.
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
