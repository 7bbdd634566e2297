"""Important rules, each broken on purpose. Run `python -m tests.mutations`."""

import sys
from pathlib import Path

TESTS = str(Path(__file__).parents[1])
if TESTS not in sys.path:
    sys.path.insert(0, TESTS)  # like pytest, because the edits are a module of that folder
