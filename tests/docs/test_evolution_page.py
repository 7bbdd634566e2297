"""docs/reference/evolution.md is what the code makes of each change."""

from schema_changes import CHANGES, POLICIES, outcome


def test_every_change_has_one_outcome_for_each_policy_and_freeze_takes_none_of_those_that_change_something() -> None:
    assert len({change.name for change in CHANGES}) == len(CHANGES) > 14
    for change in CHANGES:
        evolve, _, freeze = (outcome(change, policy) for policy in POLICIES)
        assert freeze.startswith("stops") == (evolve != "nothing changes")
