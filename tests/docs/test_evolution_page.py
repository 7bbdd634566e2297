"""docs/reference/evolution.md has the outcome that the code computes for each change."""

import pytest
from support.schema_changes import CHANGES, POLICIES, outcome

pytestmark = pytest.mark.core


def test_freeze_stops_every_change_that_evolve_applies() -> None:
    assert len({change.name for change in CHANGES}) == len(CHANGES) > 14
    for change in CHANGES:
        evolve, _, freeze = (outcome(change, policy) for policy in POLICIES)
        assert freeze.startswith("stops") == (evolve != "nothing changes")
