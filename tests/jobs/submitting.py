"""Jobs that are submitted with spark-submit, in a separate process."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parents[2]
PROGRAMS = Path(sys.executable).parent
RECORDS = 5
"""Records of the topic to land."""


@dataclass(frozen=True)
class Ended:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """All output with normalized white space, because tables and terminals break lines."""
        return " ".join(f"{self.out} {self.err}".split())

    @property
    def report(self) -> dict[str, Any]:
        """The run's report, from the last line of standard output."""
        report: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return report


Submit = Callable[..., Ended]
