"""Jobs submitted as anyone would: by spark-submit, in a process of its own."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parents[2]
PROGRAMS = Path(sys.executable).parent
RECORDS = 5
"""Of the topic that is there to be landed."""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """All it said, white space made one: tables and terminals break lines."""
        return " ".join(f"{self.out} {self.err}".split())

    @property
    def report(self) -> dict[str, Any]:
        """The run's report, from the last line of standard output."""
        report: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return report


Submit = Callable[..., Ended]
