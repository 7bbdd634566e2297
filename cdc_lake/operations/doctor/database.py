"""What the source database shows: replica identities, partitions, publications and replication slots of Postgres."""

import time
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import psycopg
from pydantic import SecretStr

from cdc_lake.config import TableConfig
from cdc_lake.operations.doctor.connectors import Connector
from cdc_lake.operations.doctor.findings import Finding, fail, ok, warn
from cdc_lake.reconcile.postgres_catalog import SourceTable, read_tables
from cdc_lake.reconcile.sides import lsn_of_source, open_snapshot

_IDENTITIES = """
SELECT n.nspname, c.relname, c.relreplident::text, rn.nspname, r.relname
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_class r ON c.relispartition AND r.oid = pg_partition_root(c.oid)
LEFT JOIN pg_namespace rn ON rn.oid = r.relnamespace
WHERE c.relkind IN ('r', 'p') AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
ORDER BY n.nspname, c.relname
"""
_PUBLICATIONS = """
SELECT p.pubname, ARRAY[pubinsert, pubupdate, pubdelete, pubtruncate],
    ARRAY(SELECT schemaname || '.' || tablename FROM pg_publication_tables t WHERE t.pubname = p.pubname)
FROM pg_publication p
"""
_SLOTS = """
SELECT slot_name, active, wal_status, confirmed_flush_lsn - '0/0'::pg_lsn, safe_wal_size
FROM pg_replication_slots WHERE slot_type = 'logical' AND database = current_database()
"""
_OPERATIONS = ("inserts", "updates", "deletes", "TRUNCATE")
_FULL, _NOTHING = "f", "n"
"""Letters of replica identities."""
_MAX_SLOT_BYTES = 1 << 30
"""A slot that is further behind holds back WAL that may fill the source's disk."""
_MAX_CLOCK_SECONDS = 5.0


@dataclass(frozen=True)
class TableIdentity:
    """How Postgres identifies the old row of an update or delete.

    Attributes:
        letter: `pg_class.relreplident`.
        root: the table of a partition; None for others.
    """

    table: SourceTable
    letter: str
    root: SourceTable | None


@dataclass(frozen=True)
class SlotState:
    """A replication slot.

    Attributes:
        status: `pg_replication_slots.wal_status`.
        behind_bytes: the WAL after the position that the connector has confirmed.
        safe_bytes: the WAL that can be written before the slot is lost; None without a limit.
    """

    name: str
    is_active: bool
    status: str | None
    behind_bytes: int
    safe_bytes: int | None


def examine_database(
    url: SecretStr, prefix: str, tables: Mapping[str, TableConfig], connectors: Sequence[Connector]
) -> Iterator[Finding]:
    """What the source database of a topic prefix shows.

    Args:
        tables: the settings of its topics.
        connectors: the connectors of this prefix.

    Raises:
        CdcLakeError: see `open_snapshot`.
    """
    with open_snapshot(url, f"databases.{prefix}") as source:
        yield ok("database", f"it responds; topics with tables in it: {len(tables)}", prefix)
        ((seconds,),) = source.execute("SELECT extract(epoch FROM clock_timestamp())::float").fetchall()
        yield from clock("the database", seconds)
        identities = [_identity(*row) for row in source.execute(_IDENTITIES)]
        letters = {one.table.topic(prefix): one.letter for one in identities}
        for table in read_tables(source):
            if (topic := table.topic(prefix)) in tables:
                yield from lost_columns(table, letters.get(topic, _FULL), tables[topic], topic)
        yield from replica_identities(identities, tables.keys(), prefix)
        yield from partitions(identities, tables.keys(), prefix)
        names = {
            connector.config.get("publication.name", "dbz_publication")
            for connector in connectors
            if connector.config.get("plugin.name") == "pgoutput"
        }
        used = [row for row in source.execute(_PUBLICATIONS) if row[0] in names]
        for name, sent, _ in used:
            yield from publication(name, sent)
        if used:
            published = {place for _, _, places in used for place in places}
            yield from unpublished(identities, published, tables.keys(), prefix)
        yield from slots(_slots(source), [connector for connector in connectors if connector.kind == "postgresql"])


def _identity(schema: str, name: str, letter: str, root_schema: str | None, root: str | None) -> TableIdentity:
    of = None if root_schema is None or root is None else SourceTable(root_schema, root, ())
    return TableIdentity(SourceTable(schema, name, ()), letter, of)


def _slots(source: psycopg.Connection[Any]) -> list[SlotState]:
    end = lsn_of_source(source)
    return [
        SlotState(name, is_active, status, max(end - int(confirmed or 0), 0), safe)
        for name, is_active, status, confirmed, safe in source.execute(_SLOTS)
    ]


def clock(whose: str, seconds: float) -> Iterator[Finding]:
    """Whether a clock agrees with this machine's.

    Args:
        seconds: its time since 1970, just now.
    """
    difference = seconds - time.time()
    if abs(difference) > _MAX_CLOCK_SECONDS:
        what = (
            f"the clock of {whose} is {abs(difference):.0f} s {'ahead' if difference > 0 else 'behind'}, so freshness "
            "and lag are wrong"
        )
        yield warn("clock", what, "synchronize both clocks with NTP")
    else:
        yield ok("clock", f"it agrees with the clock of {whose}")


def lost_columns(table: SourceTable, letter: str, settings: TableConfig, topic: str) -> Iterator[Finding]:
    """Which columns of a table are lost, and why Debezium cannot capture it, if so."""
    if table.trouble and settings.key_of_rows == ():
        what = f"{table.trouble}, so its changes are missing in silver or quarantined"
        yield warn("tables", what, "give the table a plain primary key, or set `merge.keys`", topic)
    unsent = [column.lake_name for column in table.columns if not column.is_sent]
    if unsent:
        what = f"Debezium does not send the type of {', '.join(unsent)}, so silver lacks these columns"
        yield warn("tables", what, "set include.unknown.datatypes=true, or store these values as text", topic)
    without_mark = [
        column.lake_name
        for column in table.columns
        if column.loses_unchanged and column.lake_name not in settings.envelope.null_means_unchanged
    ]
    if without_mark and letter != _FULL:
        listed = ", ".join(without_mark)
        what = f"an update that does not change a large array in {listed} sets it to null"
        cure = f"list {listed} in `envelope.null_means_unchanged`, or ALTER TABLE {table.place} REPLICA IDENTITY FULL"
        yield warn("replica-identity", what, cure, topic)


def replica_identities(identities: Sequence[TableIdentity], topics: Set[str], prefix: str) -> Iterator[Finding]:
    """Which captured tables have no replica identity."""
    for one in identities:
        names = [table.topic(prefix) for table in (one.table, one.root) if table]
        if one.letter == _NOTHING and not topics.isdisjoint(names):
            what = "REPLICA IDENTITY NOTHING: Postgres refuses updates and deletes, or they do not arrive"
            cure = f"ALTER TABLE {one.table.place} REPLICA IDENTITY DEFAULT"
            yield fail("replica-identity", what, cure, names[0])


def partitions(identities: Sequence[TableIdentity], topics: Set[str], prefix: str) -> Iterator[Finding]:
    """Which partitioned tables arrive under their own name and under those of their partitions."""
    twice = dict[str, list[str]]()
    for one in identities:
        if one.root and (own := one.table.topic(prefix)) in topics and (root := one.root.topic(prefix)) in topics:
            twice.setdefault(root, []).append(own)
    for root, parts in twice.items():
        what = (
            f"its rows also arrive in {len(parts)} topics of partitions, such as {parts[0]}, but changes in one of the "
            "two only, so the other silver table becomes stale"
        )
        cure = "set publish.via.partition.root=true, and list only the partitioned table in table.include.list"
        yield warn("partitions", what, cure, root)


def publication(name: str, sent: Sequence[bool]) -> Iterator[Finding]:
    """Which operations a publication lacks.

    Args:
        sent: for each of insert, update, delete, truncate, whether the publication has it.
    """
    if missing := [words for words, is_sent in zip(_OPERATIONS, sent, strict=True) if not is_sent]:
        cure = f"ALTER PUBLICATION {name} SET (publish = 'insert, update, delete, truncate')"
        what = f"{name} does not include {' and '.join(missing)}, so silver differs from the source"
        yield (warn if missing == ["TRUNCATE"] else fail)("publication", what, cure, name)


def unpublished(
    identities: Sequence[TableIdentity], published: Set[str], topics: Set[str], prefix: str
) -> Iterator[Finding]:
    """Which tables with a topic are in none of the connectors' publications.

    Args:
        published: `<schema>.<table>`; of a partitioned table, it or its partitions.
    """
    roots = {one.root.place for one in identities if one.root and one.table.place in published}
    for one in identities:
        is_published = not {one.table.place, one.root.place if one.root else ""}.isdisjoint(published | roots)
        if not is_published and (topic := one.table.topic(prefix)) in topics:
            what = "the table is not in the connector's publication, so its changes do not arrive"
            cure = f"ALTER PUBLICATION <name> ADD TABLE {one.table.place}, and take an incremental snapshot of it"
            yield fail("publication", what, cure, topic)


def slots(found: Sequence[SlotState], connectors: Sequence[Connector]) -> Iterator[Finding]:
    """Whether the slots of the connectors keep what these have not read.

    Args:
        found: all logical slots of the database.
        connectors: the connectors of Postgres; without any, all slots are checked.
    """
    runs = {one.config.get("slot.name", "debezium"): set(one.states.values()) <= {"RUNNING"} for one in connectors}
    for name in sorted(runs.keys() - {slot.name for slot in found}):
        what = "the slot does not exist, so changes since it was dropped are lost when the connector creates it again"
        cure = "restart the connector with snapshot.mode=always, or take an incremental snapshot"
        yield fail("slot", what, cure, name)
    for slot in found:
        if slot.name in runs or not runs:
            yield from _slot(slot, should_be_active=runs.get(slot.name, True))


def _slot(slot: SlotState, *, should_be_active: bool) -> Iterator[Finding]:
    behind = f"{slot.behind_bytes / (1 << 20):,.0f} MiB"
    if slot.status == "lost":
        what = "Postgres has removed WAL that the connector has not read, so these changes are lost"
        cure = "drop the slot, restart the connector with snapshot.mode=always, and raise max_slot_wal_keep_size"
        yield fail("slot", what, cure, slot.name)
    elif not slot.is_active and should_be_active:
        what = f"no connector reads the slot: silver becomes stale, and {behind} of WAL fill the source's disk"
        yield warn("slot", what, "start the connector, or drop the slot if it is not needed", slot.name)
    elif slot.status == "unreserved" or (slot.safe_bytes is not None and slot.safe_bytes < slot.behind_bytes):
        what = f"the slot is {behind} behind, and Postgres will soon remove WAL that the connector has not read"
        yield warn("slot", what, "raise max_slot_wal_keep_size, and find out why the connector is slow", slot.name)
    elif slot.behind_bytes > _MAX_SLOT_BYTES:
        what = f"the slot is {behind} behind, and keeps this WAL on the source's disk"
        cure = "set heartbeat.interval.ms if other databases write more than this one, or find out why it is slow"
        yield warn("slot", what, cure, slot.name)
