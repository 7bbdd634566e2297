"""The story of one key: every event of it that bronze holds, what it changed, and why it won, lost or was set aside.

It is told by the fold itself, run over all of bronze for that one key.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any, Literal

from pydantic import BaseModel
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from cdc_lake.changes.whole_table import is_mark
from cdc_lake.columns import BRONZE, KAFKA, ORDER
from cdc_lake.config import Config
from cdc_lake.errors import ConfigError
from cdc_lake.events.rows import place
from cdc_lake.fold.rules import MISSING, TOMBSTONE, TRUNCATE, UPSERTS, WHOLE_TABLE_OPS
from cdc_lake.joins import joined
from cdc_lake.layers.expected import UNMET
from cdc_lake.layers.run import only_one, select_landed, silver_targets, table_path
from cdc_lake.layers.silver_append import check_has_keys
from cdc_lake.layers.silver_batch import Batch, SilverRun, looking
from cdc_lake.layers.silver_fold import Folding
from cdc_lake.session import build_session
from cdc_lake.storage import Storage
from cdc_lake.tables.delta import DeltaLakeTable

_At = tuple[tuple[Any, ...], str]
Verdict = Literal["decides", "counts", "lost", "paired", "rejected", "quarantined", "dropped", "not folded yet"]
_MOST_EVENTS = 10_000


class StoryEvent(BaseModel):
    """One event of a key.

    Attributes:
        place: `partition@offset`, before it the generation if it is not the topic's first.
        op: as the source said; tombstone, `t` a truncate of the table, `missing` a snapshot that lacks the row.
        source_ts_ms: of the source's commit; none when it does not say.
        batch: the bronze commit that brought it; none for what happened to all keys.
        verdict: decides: silver's row is what it says. counts: it did, until a later one. lost: older than what the key
            had seen. paired: a tombstone that belongs to the delete before it. rejected: it is not what the settings
            expect.
        why: in words.
        changes: by column, what was and what is from here on; texts, null for no value.
    """

    place: str
    op: str | None
    source_ts_ms: int | None
    batch: int | None
    verdict: Verdict
    why: str
    changes: dict[str, tuple[str | None, str | None]] = {}


class Story(BaseModel):
    """The events of a key, in log order.

    Attributes:
        left_out: how many events there are behind those told, which are the first 10,000.
    """

    table: str
    key: str
    events: list[StoryEvent]
    left_out: int


def story(config: Config, table: str, key: str, spark: SparkSession | None = None) -> Story:
    """Tell a key's story.

    Args:
        config: the settings.
        table: topic name.
        key: its value, `column=value` pairs separated by commas, or a JSON object of its columns.
        spark: the session; made when there is none.

    Raises:
        UnknownTableError: there is no such bronze table.
        ConfigError: bronze has no event of this key.
    """
    spark = spark or build_session("cdc_lake story", config.max_record_bytes)
    storage = Storage(spark)
    topic = only_one(select_landed(config, storage, [table]), table)
    bronze = DeltaLakeTable(spark, table_path(config, "bronze", topic))
    rows = bronze.read(as_of=bronze.version()).select(*BRONZE)
    check_has_keys(config.table(topic), topic, "look for the row in silver")
    text = _known_key(topic, rows, key)
    target = silver_targets(config, topic)[0]
    # What the settings would refuse is told as it would be if they did not.
    settings = config.table(topic).model_copy(update={"truncates_across_partitions": True})
    if settings.truncates == "refuse":
        settings = settings.model_copy(update={"truncates": "as_deletes"})
    rejecting = tuple(one for one in settings.expectations if one.on_fail == "reject")
    settings = settings.model_copy(update={"expectations": rejecting})
    run = looking(config, target, spark, bronze=rows, partitions=1, settings=settings)
    progress = run.silver.progress()
    reached = progress.sources.get(bronze.id(), 0) if progress else 0
    events, left_out = _told(run, text, reached)
    return Story(table=topic, key=text, events=events, left_out=left_out)


def _known_key(table: str, rows: DataFrame, key: str) -> str:
    """The canonical text of a key as a person gives it."""
    wanted = _columns(key)
    with_key = rows.where(F.col("key").isNotNull())
    first = with_key.select("key").first()
    names = sorted(json.loads(first["key"])) if first else []
    if isinstance(wanted, str):
        wanted = {names[0]: wanted} if len(names) == 1 else {}
    said = F.from_json("key", "map<string, string>")
    same = F.lit(sorted(wanted) == names)
    for name, value in wanted.items():
        same = same & said[name].eqNullSafe(F.lit(value))
    found = with_key.where(same).select("key").first()
    if found is None:
        raise ConfigError(
            table,
            f"bronze has no event of key {key}",
            f"its key is of {', '.join(names) or 'no column yet'}, as in {first['key'] if first else '{}'}",
        )
    text: str = found["key"]
    return text


def _columns(key: str) -> dict[str, str | None] | str:
    """The columns that a person's text names; the text itself when it names none."""
    try:
        given = json.loads(key)
    except json.JSONDecodeError:
        given = None
    if isinstance(given, dict):
        return {name: value if value is None else value_text(value) for name, value in given.items()}
    pairs = [pair.partition("=") for pair in key.split(",")]
    return {name.strip(): value for name, _, value in pairs} if all(sign for _, sign, _ in pairs) else key


def _told(run: SilverRun, key: str, reached: int) -> tuple[list[StoryEvent], int]:
    """The events, and how many more there are."""
    own = F.col("key") == key
    of_all = (F.col("op") == TRUNCATE) | is_mark(F.col("snapshot"))
    rows = run.bronze.where((own | of_all) & (F.col("status") == "ok"))
    batch = Batch(run, 1, 0, None, rows)
    assert batch.schemas is not None, "the key has an event"
    all_sent = batch.events(rows.where(own), batch.schemas, has_moves=True)
    rejected = batch.rejected
    sent = all_sent if rejected is None else joined(all_sent, rejected, [KAFKA], "left_anti")
    decided = Folding(batch, batch.schemas, sent, batch.happened_to_all, None).decided()
    counting = {_at(row): row for row in decided.history.select("op", KAFKA, ORDER).collect()}
    winner = decided.rows.select("winner.*").first()
    teller = _Teller(counting.keys(), winner and _at(winner), reached)
    happened = [row for at, row in counting.items() if row["op"] in WHOLE_TABLE_OPS]
    folded, more = _first(sent)
    happened += folded
    told = [(_at(row), teller.tell(row)) for row in sorted(happened, key=_at)]
    is_aside = F.col("status").isin("quarantined", "dropped") | F.col("tombstone_of").isNotNull()
    aside = run.bronze.where(own & is_aside)
    unfolded, more_aside = _first(aside.withColumn(KAFKA, place()))
    told += [(_at(row), _set_aside(row)) for row in unfolded]
    if rejected is not None:
        unmet, more_unmet = _first(all_sent.join(rejected.drop("key"), KAFKA))
        told += [(_at(row), _rejected(row)) for row in unmet]
        more_aside += more_unmet
    return [event for _, event in sorted(told, key=lambda one: one[0])], more + more_aside


def _first(events: DataFrame) -> tuple[list[Row], int]:
    """The first in log order, and how many more there are."""
    found = events.orderBy(KAFKA).limit(_MOST_EVENTS).collect()
    return found, events.count() - len(found) if len(found) == _MOST_EVENTS else 0


class _Teller:
    """Goes through a key's events in log order, and says of each what it did.

    Args:
        counting: the events that count, by `_at`.
        winner: the last of them.
        reached: silver's last bronze batch.
    """

    def __init__(self, counting: Collection[_At], winner: _At | None, reached: int) -> None:
        self._counting = counting
        self._winner = winner
        self._reached = reached
        self._row: dict[str, str | None] = {}
        self._last: Row | None = None

    def tell(self, event: Row) -> StoryEvent:
        """The next event, in log order."""
        known = event.asDict()
        at, op = _at(event), event["op"]
        told = StoryEvent(
            place=place_text(event[KAFKA]),
            op=op,
            source_ts_ms=known["source_ts_ms"] if "source_ts_ms" in known else known[ORDER] and known[ORDER]["ts_ms"],
            batch=known.get("batch"),
            verdict="counts",
            why=_whole_table_words(op),
        )
        if at not in self._counting:
            told.verdict, told.why = "lost", self._why_lost(event)
            return told
        if at == self._winner:
            told.verdict = "decides"
        if told.batch is not None and told.batch > self._reached:
            told.verdict, told.why = "not folded yet", f"bronze batch {told.batch}; silver has folded {self._reached}"
        told.changes = self._changes(event, known)
        if not told.changes and not told.why:
            told.why = "changes nothing"
        if op in ("c", "u", "d") and known["snapshot"] is None:
            self._last = event
        elif op == TOMBSTONE:
            self._last = None
        return told

    def _why_lost(self, event: Row) -> str:
        if self._last is None:
            return "sent again: the key had seen something newer"
        known = event["source_position"], self._last["source_position"]
        by = "its log position is not newer, and neither is its time" if all(known) else "its time is older"
        return f"sent again: {by} than those of {place_text(self._last[KAFKA])}"

    def _changes(self, event: Row, known: Mapping[str, Any]) -> dict[str, tuple[str | None, str | None]]:
        before = self._row
        if event["op"] not in UPSERTS:
            self._row = {}
        else:
            row, unsent = known["row"], set(known["unavailable"] or ())
            sent = {name: value_text(value) for name, value in row.asDict().items() if name not in unsent}
            self._row = before | sent
        names = dict.fromkeys((*before, *self._row))
        return {n: (before.get(n), self._row.get(n)) for n in names if before.get(n) != self._row.get(n)}


def _set_aside(row: Row) -> StoryEvent:
    """An event of the key that the fold never sees."""
    status = row["status"]
    return StoryEvent(
        place=place_text(row[KAFKA]),
        op=row["op"],
        source_ts_ms=row["source_ts_ms"],
        batch=row["batch"],
        verdict="paired" if status == "ok" else status,
        why=f"belongs to the delete at offset {row['tombstone_of']}" if status == "ok" else row["error"]["message"],
    )


def _rejected(row: Row) -> StoryEvent:
    """An event that silver was told not to take."""
    return StoryEvent(
        place=place_text(row[KAFKA]),
        op=row["op"],
        source_ts_ms=row["source_ts_ms"],
        batch=row["batch"],
        verdict="rejected",
        why=f"does not meet {', '.join(row[UNMET])}",
    )


def _whole_table_words(op: str) -> str:
    words = {TRUNCATE: "the table was truncated", MISSING: "a completed snapshot did not have the row"}
    return words.get(op, "")


def _at(row: Row) -> _At:
    return tuple(row[KAFKA]), row["op"]


def place_text(kafka: Row) -> str:
    """A place as people write it: `partition@offset`, before it the generation if it is not the topic's first."""
    generation = f"{kafka['generation']}/" if kafka["generation"] else ""
    return f"{generation}{kafka['partition']}@{kafka['offset']}"


def value_text(value: object) -> str | None:
    """A value for people; null for none."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Row):
        value = value.asDict(recursive=True)
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, bool | dict | list):
        return json.dumps(value, default=str, ensure_ascii=False)
    return str(value)
