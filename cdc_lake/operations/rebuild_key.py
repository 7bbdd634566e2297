"""Finds where bronze's events with a new primary key begin, for a rebuild with that key."""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc_lake.columns import KEY, quoted
from cdc_lake.decode.key import key_tree_from_row
from cdc_lake.decode.types import same_key
from cdc_lake.errors import ConfigError, UnsupportedError
from cdc_lake.fold.rules import DELETES
from cdc_lake.silver.events import log_position, sent_columns
from cdc_lake.silver.reader import BronzeReader
from cdc_lake.silver.table_run import SilverRun, has_former_key
from cdc_lake.tables.progress import KeyFrom, SilverProgress


def find_key_change(run: SilverRun, key: Sequence[str]) -> KeyFrom:
    """Where the events with bronze's newest primary key begin: after the last event with another key.

    Raises:
        ConfigError: the newest key has other columns than the options name.
    """
    side, keys = _keys(run, run.bronze)
    events = run.bronze.where((F.col("status") == "ok") & F.col(side).isin(*keys))
    came = {row[side]: row["last"] for row in events.groupBy(side).agg(F.max(log_position()).alias("last")).collect()}
    newest = keys[max(came, key=lambda name: came[name])]
    if set(newest) != set(key):
        raise ConfigError(
            f"--key-from {','.join(key)}",
            f"the newest key of {run.done.table} is {','.join(sorted(newest))}",
            "name these columns",
        )
    others = [name for name, one in keys.items() if same_key(one, newest) is None]
    landed, topics = run.landed, list(run.landed.offsets)
    if not others:
        return KeyFrom(topic_id=topics[0], start={}, whole=landed.position)
    last = max(came[name] for name in others)
    behind = F.max(F.when(F.col(side).isin(others), F.col("offset") + 1))
    # In partitions without such an event: the records with a later timestamp.
    later = F.min(F.when(F.col("log_ts") >= last["log_ts"], F.col("offset")))
    of_topic = run.bronze.where(F.col("generation") == last["generation"])
    found = of_topic.groupBy("partition").agg(F.greatest(behind, later).alias("start")).collect()
    topic_id = topics[last["generation"]]
    starts = {row["partition"]: row["start"] for row in found if row["start"] is not None}
    return KeyFrom(topic_id=topic_id, start={**landed.offsets[topic_id], **starts}, whole=landed.position)


def former_deletes(run: SilverRun, before: SilverProgress, key_from: KeyFrom | None, source: str) -> DataFrame:
    """The silver keys whose last unmerged event before the key change is a delete."""
    side, keys = _keys(run, run.bronze)
    of_silver = [name for name, one in keys.items() if set(one) == set(before.keys)]
    former = run.with_current_key(before.key_from).bronze.where(
        has_former_key(run.landed, key_from)
        & (F.col("status") == "ok")
        & (F.col("batch") > before.sources.get(source, 0))
        & F.col("tombstone_of").isNull()
        & F.col("key").isNotNull()
        & F.col(side).isin(of_silver)
    )
    last = former.groupBy("key").agg(F.max_by("op", log_position()).alias("op"))
    deleted = last.where(F.col("op").isin(*DELETES)).select(F.col("key").alias(KEY))
    schemas, silver = BronzeReader(run, before).schemas_in(former), run.silver.read()
    found = silver.limit(0) if schemas is None else schemas.with_key(silver).join(deleted, KEY, "left_semi")
    return found.select(*map(quoted, before.keys))


def _keys(run: SilverRun, bronze: DataFrame) -> tuple[str, dict[str, dict[str, str]]]:
    """The primary keys of bronze's events: the column that names the schema, and by schema the key columns and types.

    Raises:
        UnsupportedError: no event has a key.
    """
    columns = run.settings.merge.keys
    side = "value_schema" if columns else "key_schema"
    events = bronze.where((F.col("status") == "ok") & F.col("key").isNotNull() & F.col(side).isNotNull())
    trees = {}
    for (name,) in events.select(side).distinct().collect():
        tree = run.schemas.by_fingerprint(name).of_table(run.settings).tree
        trees[name] = key_tree_from_row(tree, columns) if columns else tree
    if not trees:
        raise UnsupportedError(run.done.table, "bronze has no event with a key", "run the bronze job first")
    sent = zip(trees, sent_columns(trees.values(), []).keys, strict=True)
    return side, {name: run.column_mapping.target_types(run.done.table, one) for name, one in sent}
