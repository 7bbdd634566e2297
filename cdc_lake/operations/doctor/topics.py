"""What the newest records of a topic show, and whether Kafka keeps the others until bronze reads them."""

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import cast

from confluent_kafka import Message

from cdc_lake.bronze.explain import reads
from cdc_lake.bronze.references import Names, resolve
from cdc_lake.bronze.topic_run import continue_from, describe_loss
from cdc_lake.bronze.usable_schemas import describe_reference
from cdc_lake.config import TableConfig
from cdc_lake.decode.framing import Side, reference_and_body
from cdc_lake.decode.records import WriterSchema, schema_text
from cdc_lake.decode.schema_texts import columns_that_lose_nulls
from cdc_lake.decode.schemas import SchemaError, fields
from cdc_lake.lake.schema_files import writer_schema
from cdc_lake.operations.doctor.connectors import NO_POSITION, POSITIONS, Connector, null_defaults
from cdc_lake.operations.doctor.findings import Finding, fail, warn
from cdc_lake.registries.registry import Registry
from cdc_lake.runs.report import Report
from cdc_lake.sources.logs import TopicLog
from cdc_lake.tables.progress import BronzeProgress

_ADD_FIELDS = "transforms.unwrap.add.fields=op,db,schema,table,lsn,source.ts_ms,source.snapshot,source.txId"
_SNAPSHOT = "take an incremental snapshot of the table (docs/how-to/backfill.md)"


@dataclass(frozen=True)
class TopicSample:
    """The newest records of a topic.

    Attributes:
        records: in the order of their timestamps.
        connector: the topic's connector; None if it is unknown.
    """

    topic: str
    settings: TableConfig
    records: Sequence[Message]
    connector: Connector | None = None

    def examine(self, registry: Registry) -> Iterator[Finding]:
        """What the records show. If the connector is known, its configuration shows the position and the deletes.

        Raises:
            ConfigError: the registry rejects the credentials.
            InfrastructureError: it does not respond.
        """
        values, problems = self._schemas("value", registry)
        if self.settings.key_of_rows == ():
            problems += self._schemas("key", registry)[1]
        for problem in problems:
            cure = "check registry.url and registry.ids; until then, bronze quarantines such records"
            yield fail("schema-ids", f"the newest records cannot be decoded: {problem}", cure, self.topic)
        for schema in values[-1:]:
            if schema.format == "avro":
                yield from null_defaults(columns_that_lose_nulls(schema.text), self.topic, self.connector)
            if self.connector is None and schema.shape == "flat" and self.settings.merge.mode == "merge":
                yield from self._of_flat_rows(fields(schema.tree).keys())

    def _schemas(self, side: Side, registry: Registry) -> tuple[list[WriterSchema], list[str]]:
        """The schemas of the keys or values that name them, the newest last; and why others cannot be decoded."""
        bodies, embedded = dict[str, list[bytes]](), list[WriterSchema]()
        for record in self.records:
            data = record.key() if side == "key" else record.value()
            if not data:
                continue
            wire_format = self.settings.wire(side).wire_format
            headers = cast(Sequence[tuple[str, bytes | None]], record.headers() or ())
            reference, body = reference_and_body(data, headers, side, wire_format)
            if reference:
                bodies.setdefault(reference, []).append(body)
            elif schema := embedded_schema(data):
                embedded.append(schema)
        names = Names(self.topic, allowed=self.settings.envelope.record_names)

        def look_up(kind: str, schema_id: str) -> Sequence[WriterSchema]:
            answer = registry.schema(kind, schema_id)
            return (writer_schema(answer).of_table(self.settings),) if answer else ()

        resolution = resolve(
            bodies, names=names, kinds=registry.namespaces, known_kinds={}, look_up=look_up, samples=lambda _: bodies
        )
        problems, found = list(resolution.problems.values()), list[WriterSchema]()
        for reference in (one for one in bodies if one in resolution.meanings):
            schemas = filter(_is_usable, resolution.meanings[reference])
            fitting = [one for one in schemas if all(reads(one, body) for body in bodies[reference])]
            found += fitting[:1]
            problems += [] if fitting else [f"the {side} does not fit {describe_reference(reference)}"]
        return [*embedded, *found], problems

    def _of_flat_rows(self, names: Collection[str]) -> Iterator[Finding]:
        """What rows without an envelope lack.

        Args:
            names: the fields of their schema.
        """
        sent = {name.removeprefix("__").removeprefix("source_") for name in names if name.startswith("__")}
        is_ordered = self.settings.is_in_log_order or self.settings.merge.sequence_by
        if not is_ordered and not any(sent.issuperset(group) for groups in POSITIONS.values() for group in groups):
            yield warn("position", NO_POSITION, f"set {_ADD_FIELDS}", self.topic)
        has_tombstone = any(record.value() is None for record in self.records)
        if not sent & {"op", "deleted"} and not has_tombstone and not self.settings.merge.apply_as_deletes:
            what = "no field or tombstone shows a delete, so deleted rows may stay in silver"
            yield warn("deletes", what, "set transforms.unwrap.delete.tombstone.handling.mode=rewrite", self.topic)


def embedded_schema(data: bytes) -> WriterSchema | None:
    """The schema that Connect's JsonConverter embeds in a record; None if it does not."""
    try:
        content = json.loads(data) if data.startswith(b"{") else None
    except (ValueError, RecursionError):
        return None
    schema = content.get("schema") if isinstance(content, dict) else None
    found = WriterSchema(schema_text("connect", schema=json.dumps(schema)))
    return found if isinstance(schema, dict) and _is_usable(found) else None


def _is_usable(schema: WriterSchema) -> bool:
    try:
        return bool(schema.tree)
    except SchemaError:
        return False


def longest_pause(reports: Sequence[Report], topic: str) -> float:
    """The longest time in seconds in which no run of bronze read the topic, between two of these reports.

    Time before a round of a continuous run does not count: rounds that find nothing new have no report.

    Args:
        reports: newest first.
    """
    runs = [one for one in reports if one.layer == "bronze" and any(table.table == topic for table in one.tables)]
    pauses = (
        (later.started_at - (earlier.ended_at or earlier.started_at)).total_seconds()
        for later, earlier in pairwise(runs)
        if "start" in later.seconds
    )
    return max(pauses, default=0.0)


def retention(
    log: TopicLog,
    progress: BronzeProgress | None,
    settings: Mapping[str, str],
    waits: Mapping[str, float],
    kept_seconds: float = math.inf,
) -> Iterator[Finding]:
    """Whether Kafka deleted records that bronze has not read, or soon will.

    Args:
        progress: bronze's; None if it has not read the topic.
        settings: the topic's in Kafka.
        waits: how long records wait until bronze reads them, in seconds, each by a sentence with `{}` for it.
        kept_seconds: the age of the oldest record, if Kafka deletes records by the size of the log.
    """
    if progress is None:
        if any(span.start for span in log.partitions.values()):
            what = "Kafka has already deleted the first records, so silver will lack rows that did not change since"
            yield warn("retention", what, _SNAPSHOT, log.name)
    else:
        offsets, gaps = continue_from(log, progress.offsets)
        for gap in gaps:
            cure = f"run bronze with `--accept-loss`, then {_SNAPSHOT}"
            yield fail("retention", describe_loss(log, gap, offsets[log.id]), cure, log.name)
    policies = settings.get("cleanup.policy", "delete")
    limits = [
        ("delete", "retention.ms", int(settings.get("retention.ms", -1)) / 1000),
        ("delete", "retention.bytes", kept_seconds),
        ("compact", "delete.retention.ms", int(settings.get("delete.retention.ms", -1)) / 1000),
    ]
    sentence, waiting_seconds = max(waits.items(), key=itemgetter(1))
    for policy, name, seconds in limits:
        if policy in policies and 0 <= seconds < 2 * waiting_seconds:
            lost = "tombstones, and with them deletes," if policy == "compact" else "records"
            what = f"{sentence.format(_hours(waiting_seconds))}, and Kafka deletes {lost} after {_hours(seconds)}"
            yield warn("retention", what, f"run bronze more often, or raise {name} of the topic", log.name)


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 360 else f"{seconds:.0f} s"
