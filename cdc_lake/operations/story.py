"""The story of one key: its events in bronze, the changes of each, and why it won, lost or was rejected.

It applies `cdc_lake.fold.rules`, the definition of the fold, to each event in turn.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from pydantic import BaseModel
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from cdc_lake.columns import KAFKA
from cdc_lake.config import Config, TableConfig
from cdc_lake.decode.envelope import is_snapshot_edge
from cdc_lake.errors import ConfigError
from cdc_lake.fold.rules import (
    STREAMING_OPS,
    TRUNCATE,
    WHOLE_TABLE_OPS,
    Event,
    Order,
    Position,
    State,
    are_comparable,
    step,
)
from cdc_lake.fold.table_events import table_events
from cdc_lake.lake.lake import Lake
from cdc_lake.runs.context import lake_of, needs_hadoop, only_one, select_landed
from cdc_lake.runs.user_sql import UNMET, with_unmet
from cdc_lake.silver.events import events, kafka_position
from cdc_lake.silver.table import SilverTable
from cdc_lake.spark.session import build_session, is_little, lake_files, planned_for
from cdc_lake.storage.hadoop import HadoopFiles

Verdict = Literal["decides", "counts", "lost", "paired", "rejected", "quarantined", "dropped", "not folded yet"]
_MAX_EVENTS = 10_000


class StoryEvent(BaseModel):
    """One event of a key.

    Attributes:
        place: Kafka position, `partition@offset`; `generation/partition@offset` if the topic was re-created.
        op: the operation of the source; `tombstone`; `t` for a truncate; `missing` for a snapshot that lacks the row.
        source_ts_ms: time of the source's commit; None if the event has none.
        batch: the bronze commit that landed it; None for events of all keys.
        verdict: `decides`: silver's row is the result of this event. `counts`: it changed the row, but a later event
            decides. `lost`: it is older than the row. `paired`: a tombstone after its delete. `rejected`: it does not
            meet an expectation.
        why: the reason for the verdict.
        changes: by column, the values before and after as text; null for no value.
    """

    place: str
    op: str | None
    source_ts_ms: int | None
    batch: int | None = None
    verdict: Verdict = "counts"
    why: str = ""
    changes: dict[str, tuple[str | None, str | None]] = {}


class Story(BaseModel):
    """The events of a key, in log order.

    Attributes:
        left_out: how many events follow the first 10,000, which are in `events`. If there are any, no event has the
            verdict `decides`.
    """

    table: str
    key: str
    events: list[StoryEvent]
    left_out: int


def story(config: Config, table: str, key: str, spark: SparkSession | None = None) -> Story:
    """The story of a key.

    Args:
        table: topic name.
        key: the key's value, `column=value` pairs separated by commas, or a JSON object of its columns.

    Raises:
        UnknownTableError: the bronze table does not exist.
        ConfigError: bronze has no event of this key.
    """
    lake = lake_of(config)
    files = lake_files(lake.root, spark)
    if needs_hadoop(lake, files):
        spark = spark or build_session("cdc_lake story", config.max_record_bytes)
        files = HadoopFiles(spark)
    topic = only_one(select_landed(lake, files, [table]), table)
    newest = lake.newest_bronze(files, topic)
    stored_bytes = newest.bytes if newest else None
    is_short = stored_bytes is not None and is_little(rows=0, stored_bytes=stored_bytes)
    spark = spark or build_session("cdc_lake story", config.max_record_bytes, is_short=is_short)
    with planned_for(spark, rows=0 if is_short else None):
        return _story(lake, topic, config.table(topic), key, spark)


def _story(lake: Lake, topic: str, settings: TableConfig, key: str, spark: SparkSession) -> Story:
    settings.check_has_keys(topic, "look for the row in silver")
    table, progress = SilverTable.open_to_refold(lake, lake.silver(topic)[0], spark, settings)
    table = table.with_current_key(progress.key_from if progress else None)
    text = _find_key(topic, table.bronze_rows, key)
    reached = table.bronze.reached_by(progress, table.landed) or 0
    events, left_out = _story_events(table, text, reached)
    return Story(table=topic, key=text, events=events, left_out=left_out)


def _find_key(table: str, rows: DataFrame, key: str) -> str:
    """The canonical text of a key that a user typed."""
    wanted = _columns(key)
    with_key = rows.where(F.col("key").isNotNull())
    first = with_key.select("key").first()
    names = sorted(json.loads(first["key"])) if first else []
    if isinstance(wanted, str):
        wanted = {names[0]: wanted} if len(names) == 1 else {}
    columns = F.from_json("key", "map<string, string>")
    same = F.lit(sorted(wanted) == names)
    for name, value in wanted.items():
        same = same & columns[name].eqNullSafe(F.lit(value))
    row = with_key.where(same).select("key").first()
    if row is None:
        raise ConfigError(
            table,
            f"bronze has no event of key {key}",
            f"its key columns are {', '.join(names) or 'not known yet'}, for example {first['key'] if first else '{}'}",
        )
    text: str = row["key"]
    return text


def _columns(key: str) -> dict[str, str | None] | str:
    """The columns in a user's text; the text itself if it has no column names."""
    try:
        given = json.loads(key)
    except json.JSONDecodeError:
        given = None
    if isinstance(given, dict):
        return {name: value if value is None else value_text(value) for name, value in given.items()}
    pairs = [pair.partition("=") for pair in key.split(",")]
    return {name.strip(): value for name, _, value in pairs} if all(sign for _, sign, _ in pairs) else key


def _story_events(table: SilverTable, key: str, reached: int) -> tuple[list[StoryEvent], int]:
    """The first events, and how many more follow."""
    own = F.col("key") == key
    happened, more = _key_events(table, own)
    listed = _fold_events(happened, reached, more, log_may_reset=table.settings.log_may_reset)
    is_aside = F.col("status").isin("quarantined", "dropped") | F.col("tombstone_of").isNotNull()
    aside, more_aside = _first(table.bronze_rows.where(own & is_aside).withColumn(KAFKA, kafka_position()))
    listed += [(tuple(row[KAFKA]), _unfolded_event(row)) for row in aside]
    return [event for _, event in sorted(listed, key=lambda pair: pair[0])], more + more_aside


def _key_events(table: SilverTable, own: Column) -> tuple[list[tuple[Event, StoryEvent]], int]:
    """The first events of a key, and those of all keys, in log order, and how many more follow."""
    truncates_and_markers = (F.col("op") == TRUNCATE) | is_snapshot_edge(F.col("snapshot"))
    rows = table.bronze_rows.where((own | truncates_and_markers) & (F.col("status") == "ok"))
    schemas, sent, more = table.schemas_in(rows), list[Row](), 0
    if schemas is not None:
        typed = events(rows.where(own), schemas, has_key_changes=True)
        rejecting = [one for one in table.settings.quality.expectations if one.on_fail == "reject"]
        unmet = with_unmet(typed, rejecting, table.name).drop("key")
        sent, more = _first(typed.join(unmet, KAFKA, "left"))
    key_events = [
        *(_row_event(row, in_log_order=table.settings.is_in_log_order) for row in sent),
        *map(_whole_table_event, table_events(*table.truncates_and_markers(rows)).events),
    ]
    key_events.sort(key=lambda pair: pair[0].kafka_position)
    return key_events[:_MAX_EVENTS], more + len(key_events[_MAX_EVENTS:])


def _first(events: DataFrame) -> tuple[list[Row], int]:
    """The first events in log order, and how many more follow."""
    rows = events.orderBy(KAFKA).limit(_MAX_EVENTS).collect()
    return rows, events.count() - len(rows) if len(rows) == _MAX_EVENTS else 0


def _fold_events(
    happened: Iterable[tuple[Event, StoryEvent]], reached: int, more: int, *, log_may_reset: bool
) -> list[tuple[Position, StoryEvent]]:
    """Fold events, and add its effect to each. Events that apply to all keys are listed only if they count.

    Args:
        happened: the key's events, in log order.
        reached: silver's last bronze batch.
        more: how many events follow, any of which may decide.
        log_may_reset: see `rules.is_outdated`.
    """
    listed = []
    state, row = State(), dict[str, str | None]()
    newest, winner = None, None
    for event, one in happened:
        if one.verdict == "rejected":
            pass
        elif step(state, event, hard=False, log_may_reset=log_may_reset).counts:
            before, row = row, state.values if state.is_live else {}
            one.changes = {n: (before.get(n), row.get(n)) for n in {**before, **row} if before.get(n) != row.get(n)}
            if one.batch is not None and one.batch > reached:
                one.verdict, one.why = "not folded yet", f"bronze batch {one.batch}; silver has merged up to {reached}"
            elif not (one.changes or one.why):
                one.why = "changes nothing"
            newest, winner = event if event.order and event.is_streaming else newest, one
        elif event.op in WHOLE_TABLE_OPS:
            continue
        else:
            one.verdict, one.why = "lost", _why_lost(event, newest)
        listed.append((event.kafka_position, one))
    if winner is not None and winner.verdict == "counts" and state.has_row:
        if more:
            winner.why = "an event that is not shown may decide"
        else:
            winner.verdict = "decides"
    return listed


def _why_lost(event: Event, newest: Event | None) -> str:
    """Why an event did not count; `newest` is the last streaming event before it that counted."""
    assert event.order and newest and newest.order, "only an event with an order can lose, and only against another"
    at = position_text(newest.kafka_position)
    if not event.is_streaming:
        return f"outdated: a snapshot read the row before the change at {at}"
    if are_comparable(event.order, newest.order):
        return f"stale: its source position and time are not newer than those of {at}"
    return f"stale: its time is older than that of {at}, and without a position only the time decides (merge.order)"


def _row_event(row: Row, *, in_log_order: bool) -> tuple[Event, StoryEvent]:
    is_streaming = row["op"] in STREAMING_OPS and row["snapshot"] is None and not in_log_order
    order = Order(row["source_position"], row["position_domain"], row["source_ts_ms"])
    event = Event(tuple(row[KAFKA]), row["op"], order, sent_values(row), is_streaming=is_streaming)
    shown = _base_event(row)
    if row[UNMET]:
        shown.verdict, shown.why = "rejected", f"does not meet {', '.join(row[UNMET])}"
    return event, shown


def _whole_table_event(event: Event) -> tuple[Event, StoryEvent]:
    at, ts_ms = position_text(event.kafka_position), event.order and event.order.ts_ms
    why = "the table was truncated" if event.op == TRUNCATE else "a completed snapshot lacks the row"
    return event, StoryEvent(place=at, op=event.op, source_ts_ms=ts_ms, why=why)


def _unfolded_event(row: Row) -> StoryEvent:
    """An event of the key that silver does not merge."""
    shown = _base_event(row)
    if row["status"] == "ok":
        shown.verdict, shown.why = "paired", f"belongs to the delete at offset {row['tombstone_of']}"
    else:
        shown.verdict, shown.why = row["status"], row["error"]["message"]
    return shown


def _base_event(row: Row) -> StoryEvent:
    """An event of the key, without a verdict."""
    at, ts_ms = position_text(row[KAFKA]), row["source_ts_ms"]
    return StoryEvent(place=at, op=row["op"], source_ts_ms=ts_ms, batch=row["batch"])


def position_text(at: Sequence[Any]) -> str:
    """The text of a Kafka position, of which at least the last three fields are given; see `StoryEvent.place`."""
    *_, generation, partition, offset = at
    return f"{f'{generation}/' if generation else ''}{partition}@{offset}"


def sent_values(event: Row) -> dict[str, str | None]:
    """The values that a typed event sent, as text."""
    values = event["row"].asDict() if event["row"] is not None else {}
    unsent = event["unavailable"] or ()
    return {name: value_text(value) for name, value in values.items() if name not in unsent}


def value_text(value: object) -> str | None:
    """A value as text; None for null."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Row):
        value = value.asDict(recursive=True)
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, bool | dict | list):
        return json.dumps(value, default=str, ensure_ascii=False)
    return str(value)
