"""Event logs and the tables they must produce: docs/reference/conformance.md. Run `python -m tests.conformance`."""

import sys
from pathlib import Path

TESTS = str(Path(__file__).parents[1])
if TESTS not in sys.path:
    sys.path.insert(0, TESTS)  # like pytest, because the builders and the reference are modules of that folder
