"""`cdc-lake status` and `cdc-lake story`: the position of each table, and the events of one key."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.events import OPTIONAL_INT, OPTIONAL_STRING, PLACEHOLDER, START_MS, Topic
from support.lake import Lake

from cdc_lake.config import Config, KafkaConfig, LakeConfig, TableConfig
from cdc_lake.errors import ConfigError, InfrastructureError
from cdc_lake.fold.rules import MISSING, TOMBSTONE, TRUNCATE, WHOLE_TABLE_OPS, Event, Order, State, step
from cdc_lake.operations import status as status_module
from cdc_lake.operations import story as story_module
from cdc_lake.operations.status import TableStatus, status
from cdc_lake.operations.story import story
from cdc_lake.runs.context import Run
from cdc_lake.runs.report import Report, TableReport
from cdc_lake.runs.scheduler import TableScheduler
from cdc_lake.storage.files import LocalFiles

COLUMNS = {"n": OPTIONAL_INT, "body": OPTIONAL_STRING}


class Down:
    """A fake: a broker that does not respond."""

    name = "nowhere"

    def topics(self) -> list[str]:
        raise InfrastructureError("Kafka at nowhere", "the broker does not answer", "wait")


@pytest.fixture
def topic() -> Topic:
    return Topic(COLUMNS)


def config(root: Path) -> Config:
    return Config(lake=LakeConfig(root=str(root)))


def told(spark: SparkSession, root: Path, topic: Topic, key: str) -> list[tuple[str | None, str, str]]:
    return [(one.op, one.place, one.verdict) for one in story(config(root), topic.table, key, spark).events]


@pytest.fixture(scope="module")
def folded(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A read-only lake: key 7 was created twice, key 8 updated five times, key 9 cannot be decoded."""
    root, topic = tmp_path_factory.mktemp("folded"), Topic(COLUMNS)
    created = [topic.change("c", 7, {"n": 1}, lsn=10, ts_ms=START_MS) for _ in range(2)]
    updated = [topic.change("u", 8, {"n": n}, lsn=10 + n, ts_ms=START_MS + n) for n in range(5)]
    unread = topic.change("c", 9, {"n": 1}, lsn=10, ts_ms=START_MS)
    Lake(spark, root, topic).take([*created, *updated, replace(unread, value=(unread.value or b"")[:-3])])
    return root


def test_story_explains_the_effect_of_each_event(spark: SparkSession, tmp_path: Path, topic: Topic) -> None:
    lake = Lake(spark, tmp_path, topic)
    create = topic.change("c", 7, {"n": 1, "body": "long"}, lsn=10, ts_ms=START_MS, offset=0)
    lake.take(
        [
            create,
            topic.change("c", 8, {"n": 1, "body": "of another key"}, lsn=11, ts_ms=START_MS + 1, offset=1),
            topic.change("u", 7, {"n": 2, "body": PLACEHOLDER}, lsn=12, ts_ms=START_MS + 2, offset=2),
        ],
        [
            topic.change("c", 7, {"n": 1, "body": "long"}, lsn=10, ts_ms=START_MS, offset=3),
            topic.change("d", 7, {"n": 2, "body": "long"}, lsn=13, ts_ms=START_MS + 3, offset=4),
            topic.tombstone(7, offset=5),
            topic.change("c", 7, {"n": 9, "body": None}, lsn=14, ts_ms=START_MS + 4, offset=6),
        ],
    )
    lake.land([topic.change("u", 7, {"n": 10, "body": None}, lsn=15, ts_ms=START_MS + 5, offset=7)])

    events = {one.place: one for one in story(config(tmp_path), topic.table, "7", spark).events}

    assert [(place, one.op, one.verdict) for place, one in events.items()] == [
        ("0@0", "c", "counts"),
        ("0@2", "u", "counts"),
        ("0@3", "c", "lost"),
        ("0@4", "d", "counts"),
        ("0@5", "tombstone", "paired"),
        ("0@6", "c", "counts"),
        ("0@7", "u", "not folded yet"),
    ]
    assert events["0@0"].changes == {"id": (None, "7"), "n": (None, "1"), "body": (None, "long")}
    assert events["0@2"].changes == {"n": ("1", "2")}
    assert "0@2" in events["0@3"].why
    assert events["0@4"].changes == {"id": ("7", None), "n": ("2", None), "body": ("long", None)}
    assert events["0@6"].changes == {"id": (None, "7"), "n": (None, "9")}
    assert "bronze batch 3" in events["0@7"].why


def test_story_of_a_folded_key_shows_the_deciding_event(spark: SparkSession, folded: Path, topic: Topic) -> None:
    assert told(spark, folded, topic, '{"id": 7}') == [("c", "0@0", "decides"), ("c", "0@1", "lost")]


def test_long_story_reports_how_many_events_are_omitted(
    spark: SparkSession, folded: Path, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(story_module, "_MAX_EVENTS", 2)

    found = story(config(folded), topic.table, "8", spark)

    assert ([one.place for one in found.events], found.left_out) == (["0@2", "0@3"], 3)
    assert (found.events[1].verdict, found.events[1].why) == ("counts", "an event that is not shown may decide")


def test_story_verdicts_match_the_fold_rules(spark: SparkSession, tmp_path: Path, topic: Topic) -> None:
    def order(lsn: int) -> Order:
        return Order((lsn,), "", START_MS + lsn)

    happened = [
        Event((0,), "c", order(10)),
        Event((1,), "u", order(12)),
        Event((2,), "c", order(10)),  # stale
        Event((3,), TOMBSTONE),
        Event((4,), "c", order(10)),  # not stale any more
        Event((5,), TRUNCATE, order(14)),
        Event((6,), "u", order(12)),  # older than the truncate
        Event((7,), "c", order(16)),
        Event((8,), TRUNCATE, order(14)),  # stale
        Event((10,), MISSING, since=(9,)),
        Event((12,), MISSING, since=(11,)),  # it is deleted already
    ]
    records = []
    for event in happened:
        (offset,) = event.kafka_position
        if event.order is None:
            records += [topic.tombstone(7, offset=offset)] * (event.op == TOMBSTONE)
        else:
            key, row = (None, None) if event.op == TRUNCATE else (7, {"n": offset})
            records.append(
                topic.change(event.op, key, row, lsn=event.order.position[0], ts_ms=event.order.ts_ms, offset=offset)
            )
    for offset, marker in enumerate(("first", "last", "first", "last"), 9):
        records.append(topic.change("r", 8, {"n": 1}, lsn=20, ts_ms=START_MS, offset=offset, snapshot=marker))
    settings = TableConfig(deletes={"missing_after_snapshot": True})
    Lake(spark, tmp_path, topic, deletes={"missing_after_snapshot": True}).take(records)

    found = story(config(tmp_path).model_copy(update={"defaults": settings}), topic.table, "7", spark).events

    state = State()
    counting = [(event, step(state, event, hard=False).counts) for event in happened]
    assert [(one.place, one.op, one.verdict != "lost") for one in found] == [
        (f"0@{event.kafka_position[0]}", event.op, counts)
        for event, counts in counting
        if counts or event.op not in WHOLE_TABLE_OPS
    ]
    whys = {one.place: one.why for one in found}
    assert whys["0@2"].endswith("than those of 0@1") and whys["0@6"].endswith("than those of 0@5")
    assert [(one.place, one.op) for one in found if one.verdict == "decides"] == [("0@10", MISSING)]
    assert found[4].changes == {"id": (None, "7"), "n": (None, "4")}


def test_story_of_a_quarantined_only_key_is_that_record(spark: SparkSession, folded: Path, topic: Topic) -> None:
    assert told(spark, folded, topic, "9") == [(None, "0@7", "quarantined")]


def test_story_includes_truncates_and_quarantined_records(spark: SparkSession, tmp_path: Path, topic: Topic) -> None:
    create = topic.change("c", 7, {"n": 1}, lsn=10, ts_ms=START_MS, offset=0)
    unreadable = topic.change("u", 7, {"n": 2}, lsn=11, ts_ms=START_MS + 1, offset=1)
    lake = Lake(spark, tmp_path, topic)
    lake.take(
        [
            create,
            topic.record(unreadable.key, (unreadable.value or b"")[:-3], offset=1),
            topic.change("t", None, None, lsn=12, ts_ms=START_MS + 2, offset=2),
        ]
    )

    events = story(config(tmp_path), topic.table, "id=7", spark).events

    assert [(one.op, one.place, one.verdict) for one in events] == [
        ("c", "0@0", "counts"),
        (None, "0@1", "quarantined"),
        ("t", "0@2", "decides"),
    ]
    assert "value" in events[1].why and events[2].why == "the table was truncated"


@pytest.mark.parametrize("key", ["6", "id=6", '{"id": 6}', "n=7", '{"id": 7, "n": 1}', "{broken"])
def test_unknown_key_error_shows_an_existing_key(spark: SparkSession, folded: Path, topic: Topic, key: str) -> None:
    with pytest.raises(ConfigError, match=r'no event of key .*its key columns are id, for example {"id":[789]}'):
        story(config(folded), topic.table, key, spark)


@pytest.mark.core
def test_status_reports_the_lag_of_each_layer(spark: SparkSession, tmp_path: Path, topic: Topic) -> None:
    lake = Lake(spark, tmp_path, topic)
    then_ms = round(time.time() * 1000) - 60_000
    records = [
        topic.change("c", n, {"n": n}, lsn=n, ts_ms=then_ms, offset=n, timestamp_ms=then_ms + 1000 * n)
        for n in range(6)
    ]
    lake.take(records[:2])
    merged = time.time()
    lake.land([records[2], topic.record(records[3].key, b"garbage", offset=3, timestamp_ms=then_ms)])
    for record in records[4:]:
        lake.broker.append(record)

    began = time.time()
    bronze, silver = status(config(tmp_path), ["*"], spark, source=lake.broker).tables
    ended = time.time()

    assert (bronze.layer, bronze.commit, bronze.behind_records, bronze.quarantined) == ("bronze", 2, 2, 1)
    assert (silver.layer, silver.commit, silver.behind_records, silver.consumed) == ("silver", 1, 1, {"bronze": 1})
    for found, sent_ms in ((bronze, then_ms + 4000), (silver, then_ms + 2000)):
        assert found.behind_seconds is not None
        assert began - 0.1 <= found.behind_seconds + sent_ms / 1000 <= ended + 0.1
    assert bronze.last_run and (bronze.last_run.status, bronze.last_run.error) == ("ok", None)
    assert silver.freshness and silver.freshness.within["any"] == 2
    assert 60 <= silver.freshness.p95 <= merged - then_ms / 1000 + 0.1

    lake.fold()
    compared = Report(layer="reconcile", tables=[TableReport(table=topic.table, status="ok")])
    TableScheduler().end(Run.begin(config(tmp_path), compared), LocalFiles())
    caught_up = status(config(tmp_path), ["*"], spark, source=lake.broker).tables[1]
    assert (caught_up.behind_records, caught_up.behind_seconds) == (0, 0.0)
    assert caught_up.last_reconcile and caught_up.last_reconcile.run_id == compared.run_id


def test_status_without_kafka_reports_table_state(spark: SparkSession, tmp_path: Path, topic: Topic) -> None:
    Lake(spark, tmp_path, topic).land([topic.change("c", 7, {"n": 1}, lsn=10, ts_ms=START_MS, offset=0)])

    found = status(config(tmp_path), ["*"], spark, source=Down())  # type: ignore[arg-type]
    kafka = KafkaConfig(bootstrap_servers="embedded")
    stopped = status(Config(lake=LakeConfig(root=str(tmp_path)), kafka=kafka), ["*"], spark)

    assert found.broker_error and "does not answer" in found.broker_error
    assert stopped.broker_error and "are not running" in stopped.broker_error
    assert stopped.tables[0] == found.tables[0]
    bronze, silver = found.tables
    assert (bronze.commit, bronze.behind_records) == (1, None)
    assert silver == TableStatus(
        table=topic.table,
        layer="silver",
        commit=None,
        consumed={"bronze": 0},
        behind_records=1,
        behind_seconds=silver.behind_seconds,
    )


@pytest.mark.core
def test_status_without_lake_and_kafka_names_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_module, "build_session", None)

    with pytest.raises(InfrastructureError, match=r"Kafka at nowhere: .* and there is no table in .*bronze yet; wait"):
        status(config(tmp_path), ["*"], source=Down())  # type: ignore[arg-type]
