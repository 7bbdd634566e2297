"""`make bench-quick` at a small size: the contenders run, and wrong rows are found."""

from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks.quick import OURS, Sizes, measure, wrong_rows
from cdc_lake.demo.servers.stack import Stack

SLICE = Sizes(
    snapshot=200,
    steady_batches=2,
    recent_batches=1,
    steady_events=100,
    small_tables=1,
    small_rows=20,
    small_changes=5,
    their_small_tables=1,
)
CONTENDERS = (OURS, "tuned")


@pytest.mark.deep
def test_contenders_are_measured_and_cdc_lake_has_no_wrong_row(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")  # they are not compared here

    outcome = measure(tmp_path, stack.endpoints, SLICE, CONTENDERS)

    assert len(outcome.costs) == 7
    for costs in outcome.costs.values():
        assert tuple(costs) == CONTENDERS
        assert all(cost.cpu > 0 and cost.wall > 0 for cost in costs.values())
    assert outcome.wrong[OURS] == 0


def row(key: int, amount: float) -> dict[str, object]:
    return {
        "id": key,
        "customer": 1,
        "status": "dune",
        "amount": amount,
        "note": None,
        "city": None,
        "score": None,
    }


@pytest.mark.core
def test_missing_extra_and_changed_rows_count_as_wrong() -> None:
    sent = [
        {"seq": 1, "deleted": False, **row(1, 1.0)},
        {"seq": 2, "deleted": False, **row(2, 2.0)},
        {"seq": 3, "deleted": False, **row(3, 3.0)},
        {"seq": 4, "deleted": True, **row(3, 3.0)},
        {"seq": 5, "deleted": False, **row(2, 2.5)},
    ]

    def wrong(*found: dict[str, object]) -> int:
        return wrong_rows(pa.Table.from_pylist(sent), pa.Table.from_pylist(list(found)))

    assert wrong(row(1, 1.0), row(2, 2.5)) == 0
    assert wrong(row(1, 1.0)) == 1
    assert wrong(row(1, 1.0), row(2, 2.0)) == 1
    assert wrong(row(1, 1.0), row(2, 2.5), row(3, 3.0)) == 1
    assert wrong(row(1, 1.0), row(1, 1.0), row(2, 2.5)) == 1
