"""The kit itself: logs are read strictly, the reference passes all of them, and wrong tables are reported."""

import json
from pathlib import Path

import pytest
from support import reference

from .__main__ import main
from .by_reference import REFUSED, results_by_reference
from .cut import cuts, due
from .export import check, dump
from .log import Deletes, Log, LogError, load
from .rows import expected_rows

pytestmark = pytest.mark.core

LOGS = {log.log: log for log in load()}
EVENT = "  events: [{op: c, position: 1, ts: 1, values: {n: 1}}]\n"


@pytest.mark.parametrize("deletes", ["soft", "hard"])
def test_every_log_matches_the_reference(deletes: Deletes) -> None:
    results = dict(results_by_reference(list(LOGS.values()), deletes))

    assert {name: lines for name, lines in results.items() if lines} == {}
    assert len(results) == sum(log.stops in (None, REFUSED) for log in LOGS.values())


def test_logs_cover_every_case() -> None:
    cases = [f"O{n}" for n in range(1, 18)] + [f"T{n}" for n in range(1, 7)] + [f"F{n}" for n in range(1, 6)] + ["N14"]
    cases += [f"K{n}" for n in range(1, 11)]

    assert [case for case in cases if not any(name.startswith(f"{case}-") for name in LOGS)] == []


MUTATIONS = {
    "time does not count": ("O7-restore", "is_stale", lambda event, order, **how: _with(event, order, how, ts_ms=None)),
    "position does not count": (
        "O5-clock-steps-back",
        "is_stale",
        lambda event, order, **how: _with(event, order, how, position=None),
    ),
    "nothing is stale": ("O8-replay-that-breaks-off", "is_stale", lambda event, order, **how: False),
    "no tombstone is paired": ("delete-and-its-tombstone", "settles", lambda before, tombstone: False),
    "values are not looked for under the old key": (
        "T4-key-change",
        "value_in",
        lambda life, name, moved: life.sent.get(name, reference.UNSENT),
    ),
    "no snapshot ends": ("missing-rows-removed", "snapshot_ends", lambda events: []),
}


def _with(event: reference.Event, order: reference.Order | None, how: dict[str, bool], **unknown: None) -> bool:
    return ORIGINAL(event, order and order._replace(**unknown), **how)


ORIGINAL = reference.is_stale


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_wrong_rule_fails_a_log(mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, rule, wrong = MUTATIONS[mutation]
    monkeypatch.setattr(reference, rule, wrong)

    ((_, lines),) = results_by_reference([LOGS[name]], "soft")

    assert lines


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- log: a\n  why: it is wrong\n  rows: []\n  evnts: []\n" + EVENT, r"x\.yml: a: evnts: Extra inputs"),
        ("- log: a\n  why: it is wrong\n" + EVENT, "give one of"),
        ("- log: a\n  why: it is wrong\n  rows: [{last: 2}]\n" + EVENT, "names no event"),
        ("- log: a\n  why: it is wrong\n  rows: [{last: 1, values: {m: 1}}]\n" + EVENT, r"unknown columns \['m'\]"),
        ("- log: a\n  why: it is wrong\n  rows: [{last: 1, last: 1}]\n" + EVENT, "is there twice"),
        (
            "- log: a\n  why: it is wrong\n  rows: [{last: 1}]\n  settings: {deletes: hard}\n" + EVENT,
            "unknown settings",
        ),
        (
            "- log: a\n  why: it is wrong\n  rows: []\n" + EVENT + "- log: a\n  why: it is wrong\n  rows: []\n" + EVENT,
            "two",
        ),
        ("- log: a\n  why: it is wrong\n  rows: []\n  events: [{op: c, late_after: 2}]\n", "late_after"),
        ("- log: a\n  why: it is wrong\n  rows: []\n  events: [{op: c, key: {id: 1}}]\n", "is no key"),
        ("- just a text\n", "x.yml: just a text"),
    ],
)
def test_malformed_log_file_is_refused_with_its_name(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "x.yml").write_text(text, encoding="utf-8")

    with pytest.raises(LogError, match=said):
        load(tmp_path)


def test_every_cut_contains_every_event_once() -> None:
    for log in LOGS.values():
        for split in ("none", "each", "all-pairs"):
            for batches in cuts(log, split):
                assert [index for batch in batches for index in batch] == list(range(len(log.events)))
                assert all(batches)


def test_all_pairs_tries_each_single_cut_and_each_splits_fully() -> None:
    log = LOGS["O8-replay"]

    assert [len(batches[0]) for batches in cuts(log, "all-pairs")] == [1, 2, 3, 4]
    assert [len(batch) for batch in cuts(log, "each")[0]] == [1, 1, 1, 1, 1]
    assert [len(batch) for batch in cuts(log, "none")[0]] == [5]


def test_new_topic_and_lost_records_start_a_batch_in_every_cut() -> None:
    assert [len(batch) for batch in cuts(LOGS["O12-topic-created-again"], "none")[0]] == [2, 1]
    assert [len(batch) for batch in cuts(LOGS["gap-accepted"], "none")[0]] == [1, 4]


def test_replayed_record_is_due_after_its_predecessors_batch() -> None:
    log = LOGS["late-update"]

    assert [due(log, batches, 1) for batches in cuts(log, "all-pairs")] == [1, 1]
    assert due(log, cuts(log, "each")[0], 1) == 2
    assert due(log, cuts(log, "none")[0], 0) is None


def test_dump_contains_every_record_and_its_schemas(tmp_path: Path) -> None:
    dump(list(LOGS.values()), ["envelope", "flat"], tmp_path)

    for log in LOGS.values():
        for shape in log.shapes:
            lines = (tmp_path / shape / f"{log.log}.jsonl").read_text(encoding="utf-8").splitlines()
            assert len([json.loads(line) for line in lines]) == len(log.events)
    assert json.loads((tmp_path / "flat" / "schemas.json").read_text(encoding="utf-8"))


def rows_as_json(log: Log) -> list[dict[str, object]]:
    return [
        {"key": key, "values": row.values, "deleted": row.deleted} for key, row in expected_rows(log, "soft").items()
    ]


def test_check_passes_correct_rows_and_lists_wrong_ones(tmp_path: Path) -> None:
    right, wrong = LOGS["T1-value-of-an-earlier-update"], LOGS["O8-replay"]
    tables = {right.log: rows_as_json(right), wrong.log: [{"key": 1, "values": {"n": 2}}]}
    file = tmp_path / "rows.json"
    file.write_text(json.dumps(tables), encoding="utf-8")

    results = dict(check([right, wrong, LOGS["O3-long-first-snapshot"]], "soft", file))

    assert results["T1-value-of-an-earlier-update soft"] == []
    assert any("'n': 2" in line for line in results["O8-replay soft"])
    assert results["O3-long-first-snapshot soft"] == ["the file has no such log"]
    assert all(len(line) <= 80 for lines in results.values() for line in lines)


def test_foreign_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    file.write_text('{"O8-replay": [1]}', encoding="utf-8")

    with pytest.raises(LogError, match="JSON object"):
        check([LOGS["O8-replay"]], "soft", file)


def test_command_prints_results_and_exits_0_1_or_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.json"
    file.write_text('{"O8-replay": []}', encoding="utf-8")

    assert main(["O8-replay"]) == 0
    assert main(["O8-replay", "--check", str(file)]) == 1
    assert main(["no-such-log"]) == 2
    assert "2 of 2 pass" in capsys.readouterr().out
