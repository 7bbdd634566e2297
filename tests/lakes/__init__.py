"""Lakes written by released versions, kept to test that later versions can continue them. See CONTRIBUTING.md."""

import sys
from pathlib import Path

TESTS = str(Path(__file__).parents[1])
if TESTS not in sys.path:
    sys.path.insert(0, TESTS)  # like pytest, because the builders and the fakes are modules of that folder
