"""Hostile records from a seed, with a fixed heap: no run fails, and no good record is lost."""

from pathlib import Path

import pytest
from submitting import Submit

FUZZ = Path(__file__).with_name("bronze_of_fuzz.py")
TOPICS = {"apicurio", "confluent", "glue", "bare", "csv", "string", "json"}


@pytest.mark.parametrize(("seed", "records"), [(42, 500), pytest.param(43, 20_000, marks=pytest.mark.deep)])
def test_hostile_records_are_quarantined_and_good_ones_land(submit: Submit, seed: int, records: int) -> None:
    settings = {"FUZZ_SEED": str(seed), "FUZZ_RECORDS": str(records)}

    # 20,000 records take two CPU minutes on an idle machine.
    ended = submit("bronze", before=("--driver-memory", "640m"), job=FUZZ, seconds=1800, **settings)

    assert ended.code == 0, ended.said[-4000:]
    report = ended.report
    assert report["outside"] == []
    topics = report["topics"]
    assert topics.keys() == TOPICS
    for name, found in topics.items():
        assert (name, found["errors"], found["lost"], found["all_there"]) == (name, [], [], True)
        share = records // len(TOPICS)
        assert found["counts"]["read"] == share
        assert 0 < found["counts"]["quarantined"] < share / 2 + 1
