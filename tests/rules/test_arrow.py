"""`fold.arrow` on random logs: by index arithmetic as by `step`, and however the stream is cut into Arrow batches."""

import json
import random
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import reference
from histories import LARGE, batches, random_log

from cdc_lake.fold import arrow
from cdc_lake.fold.arrow import EVENT, GIVEN, MEMORY, OF_ROW, ORDER_TYPE, PLACE_TYPE, ROW, Rules, fold
from cdc_lake.fold.rules import Order, State

STREAM = pa.schema(
    [
        ("key", pa.string()),
        ("pk", pa.struct([("id", pa.int64())])),
        ("rank", pa.int32()),
        ("place", PLACE_TYPE),
        ("op", pa.string()),
        ("is_streaming", pa.bool_()),
        ("order", ORDER_TYPE),
        ("unsent", pa.list_(pa.string())),
        ("move", pa.string()),
        ("seen", PLACE_TYPE),
        ("snapshot", pa.string()),
        ("is_new", pa.bool_()),
        ("again", pa.bool_()),
        ("raw_value", pa.binary()),
        ("value_schema", pa.string()),
        ("framing", pa.string()),
    ]
)
Row = dict[str, Any]


def event_row(place: reference.Place, event: reference.Event) -> Row:
    """An event as silver hands it over."""
    log_ts, generation, partition, offset = place
    is_upsert = event.op in ("c", "u", "r")
    unsent = [name for name, value in (event.values or {}).items() if value is reference.UNSENT]
    return {
        "key": json.dumps(event.key),
        "pk": {"id": event.key},
        "rank": EVENT,
        "place": {
            "log_ts": log_ts,
            "topic": "t",
            "generation": generation,
            "partition": partition,
            "offset": offset,
        },
        "op": event.op,
        "is_streaming": event.op in ("c", "u", "d") and not event.is_snapshot,
        "order": {"position": event.position, "domain": event.domain, "ts_ms": event.ts_ms},
        "unsent": unsent if is_upsert else [],
        "move": None if event.move is None else str(event.move),
        "snapshot": event.snapshot,
        "is_new": True,
        "again": False,
        "raw_value": f"{partition}@{offset}".encode() if is_upsert else None,
        "value_schema": "schema",
        "framing": "id4",
    }


def stored_rows(pieces: Iterable[Row]) -> list[Row]:
    """What the next batch reads of what these pieces were written as."""
    found = []
    for piece in pieces:
        if piece["role"] != OF_ROW:
            continue
        known = {"key": piece["key"], "place": piece["place"], "order": piece["order"], "unsent": []}
        known |= {"is_streaming": False, "is_new": False, "again": False}
        if piece["has_row"]:
            unsent = piece["missing"]
            found.append({**known, "pk": piece["pk"], "rank": ROW, "op": piece["op"], "unsent": unsent})
        if not piece["has_row"] or piece["seen"] or piece["came_by"]:
            found.append({**known, "rank": MEMORY, "seen": piece["seen"], "move": piece["came_by"]})
    return found


def folded(rows: Iterable[Row], rules: Rules, *, size: int) -> list[Row]:
    """The pieces of a stream in batches of this size."""
    in_order = sorted(rows, key=lambda row: (row["key"], row["rank"], tuple(row["place"].values())))
    cut = [in_order[start : start + size] for start in range(0, len(in_order), size)]
    batches = fold((pa.RecordBatch.from_pylist(part, STREAM) for part in cut), rules)
    pieces = [piece for batch in batches for piece in batch.to_pylist()]
    return sorted(pieces, key=lambda piece: json.dumps(piece, default=str, sort_keys=True))


def histories(seed: int) -> tuple[list[Row], list[Row], Rules]:
    """Two batches of a random log, and the rules to fold them by."""
    rng = random.Random(seed)
    log = random_log(rng, 12, breaks_off=rng.random() < 0.5)
    start = rng.choice((State(), State(op="t", order=Order([0], "source", 0))))
    rules = Rules(LARGE, hard=rng.random() < 0.5, truncates_hard=False, start=start)
    first, second = batches(rng, log, 2)
    rows = {place: event_row(place, event) for place, event in reference.in_log_order(log.events)}
    early = {(log.events[number].partition, log.events[number].offset) for number in first}
    one = [row for place, row in rows.items() if (place.partition, place.offset) in early]
    other = [row for place, row in rows.items() if (place.partition, place.offset) not in early]
    assert one and other and second
    return one, other, rules


@pytest.mark.parametrize("seed", range(60))
def test_the_size_of_the_batches_changes_nothing(seed: int) -> None:
    one, other, rules = histories(seed)

    whole = folded(one, rules, size=1_000_000)
    assert folded(one, rules, size=1) == folded(one, rules, size=7) == whole

    stored = [*stored_rows(whole), *other]
    assert folded(stored, rules, size=1) == folded(stored, rules, size=7) == folded(stored, rules, size=1_000_000)


@pytest.mark.parametrize("seed", range(60))
def test_index_arithmetic_decides_as_step_does(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other, rules = histories(seed)
    by_index = folded(one, rules, size=1_000_000)
    second = [*stored_rows(by_index), *other]
    then_by_index = folded(second, rules, size=1_000_000)

    monkeypatch.setattr(arrow._Batch, "_find_slow", lambda batch: np.ones(len(batch._first), bool))
    monkeypatch.setattr(arrow._Batch, "decided", lambda batch, runs: None)

    assert folded(one, rules, size=1_000_000) == by_index
    assert folded(second, rules, size=1_000_000) == then_by_index


def test_most_runs_are_decided_by_index_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the tests above would compare `step` with itself."""
    slow: list[int] = []
    found = arrow._Batch._find_slow

    def counted(batch: arrow._Batch) -> Sequence[bool]:
        is_slow = found(batch)
        slow.append(int(is_slow.sum()))
        slow.append(len(is_slow))
        return is_slow

    monkeypatch.setattr(arrow._Batch, "_find_slow", counted)
    pieces = [folded(histories(seed)[0], histories(seed)[2], size=1_000_000) for seed in range(20)]

    assert sum(slow[::2]) < sum(slow[1::2]) / 2
    assert any(piece["role"] == GIVEN for found in pieces for piece in found)


def test_a_memory_without_a_place_leaves_the_row_s() -> None:
    """Versions up to 0.1.0 remembered so what a row waits for."""
    _, other, rules = histories(0)
    event = {**other[0], "key": "k", "op": "u", "unsent": list(LARGE), "is_streaming": False}
    place = {**event["place"], "log_ts": event["place"]["log_ts"] - 1}
    row = {**event, "rank": ROW, "place": place, "is_new": False}
    memory = {**row, "rank": MEMORY, "place": None, "order": None, "unsent": [], "move": "m"}

    batch = pa.RecordBatch.from_pylist([row, memory, event], STREAM)
    places = batch.column("place")
    fields = [pc.if_else(pc.is_valid(places), places.field(one.name), None) for one in PLACE_TYPE]
    as_in_spark = pa.StructArray.from_arrays(fields, fields=list(PLACE_TYPE), mask=pc.is_null(places))
    batch = batch.set_column(STREAM.get_field_index("place"), "place", as_in_spark)
    (piece,) = (piece for found in fold([batch], rules) for piece in found.to_pylist())

    assert (piece["place"], piece["came_by"], piece["is_behind"]) == (event["place"], "m", False)
