"""docs/reference/evolution.md is what the code makes of each change."""

from schema_changes import CHANGES, PAGE, POLICIES, outcome, page


def test_the_page_is_what_the_code_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python tests/schema_changes.py`"


def test_every_change_has_one_outcome_for_each_policy_and_freeze_takes_none_of_those_that_change_something() -> None:
    assert len({change.name for change in CHANGES}) == len(CHANGES) > 14
    for change in CHANGES:
        evolve, _, freeze = (outcome(change, policy) for policy in POLICIES)
        assert freeze.startswith("stops") == (evolve != "nothing changes")
