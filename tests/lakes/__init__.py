"""Lakes as released versions wrote them, kept to see that later versions can carry them on. See CONTRIBUTING.md."""

import sys
from pathlib import Path

TESTS = str(Path(__file__).parents[1])
if TESTS not in sys.path:
    sys.path.insert(0, TESTS)  # as pytest does: the builders and the fakes are modules of that folder
