"""Connectors of the embedded Kafka Connect."""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import requests

from cdc_lake.errors import InfrastructureError

_ADDED_FIELDS = "op,db,schema,table,lsn,ts_ms,source.ts_ms,source.ts_us,source.txId,source.snapshot,source.sequence"
_TIMEOUT_SECONDS = 60.0
_POLL_SECONDS = 0.1
_TRACE_LINES = 5


def postgres_connector_config(
    endpoints: Mapping[str, str],
    *,
    database: str,
    topic_prefix: str,
    tables: Sequence[str],
    envelope_tables: Sequence[str] = (),
    signal_table: str | None = None,
) -> dict[str, str]:
    """One Debezium connector for tables of an embedded Postgres, its records in Avro by Apicurio.

    Args:
        endpoints: of the stack.
        tables: all of them, as `<schema>.<table>`; a partitioned table by its own name, not its partitions'.
        envelope_tables: those of them whose records stay whole change events; the others' are flattened to the row.
        signal_table: the one through which it takes orders, such as for an incremental snapshot.
    """
    server = urlsplit(endpoints["postgres"])
    slot = re.sub(r"[^a-z0-9_]", "_", topic_prefix.lower())
    # `message` is where pg_logical_emit_message goes, which is no row.
    topics = (re.sub(r"[^a-zA-Z0-9._-]", "_", name) for name in (*envelope_tables, "message"))
    whole = "|".join(map(re.escape, topics))
    captured = [*tables, signal_table] if signal_table else tables
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        "database.hostname": str(server.hostname),
        "database.port": str(server.port),
        "database.user": str(server.username),
        **({"database.password": server.password} if server.password else {}),
        "database.dbname": database,
        "plugin.name": "pgoutput",
        "slot.name": slot,
        "publication.name": slot,
        "publication.autocreate.mode": "filtered",
        # Else a partitioned table arrives under the names of its partitions, and in a snapshot twice.
        "publish.via.partition.root": "true",
        "topic.prefix": topic_prefix,
        # A comma separates, whatever stands before it.
        "table.include.list": ",".join(re.escape(table).replace(",", r"\x2c") for table in captured),
        # Avro takes fewer names than Postgres.
        "schema.name.adjustment.mode": "avro",
        "field.name.adjustment.mode": "avro",
        **({"signal.data.collection": signal_table} if signal_table else {}),
        "tombstones.on.delete": "true",
        "poll.interval.ms": "100",
        "extended.headers.enabled": "false",
        "transforms": "unwrap",
        "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
        "transforms.unwrap.delete.tombstone.handling.mode": "rewrite",
        "transforms.unwrap.add.fields": _ADDED_FIELDS,
        "transforms.unwrap.predicate": "whole",
        "transforms.unwrap.negate": "true",
        "predicates": "whole",
        "predicates.whole.type": "org.apache.kafka.connect.transforms.predicates.TopicNameMatches",
        "predicates.whole.pattern": rf"{re.escape(topic_prefix)}\.({whole})",
        **_avro_converter("key", endpoints["registry"]),
        **_avro_converter("value", endpoints["registry"]),
    }


def check_connector(connect_url: str, name: str) -> None:
    """See that a connector and its task have not failed.

    Raises:
        InfrastructureError: one has, with the beginning of its trace; or Connect does not answer.
    """
    with _asking(connect_url) as session:
        _runs(session, connect_url, name)


def put_connector(connect_url: str, name: str, config: Mapping[str, str]) -> None:
    """Create or change a connector and wait until it and its task run.

    Raises:
        InfrastructureError: Connect refuses the configuration, or the connector fails or does not run in time.
    """
    where = f"connector {name}"
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    with _asking(connect_url) as session:
        answer = session.put(f"{connect_url}/connectors/{name}/config", json=dict(config), timeout=_TIMEOUT_SECONDS)
        if not answer.ok:
            raise InfrastructureError(where, f"Connect refuses it: {_reason(answer)}", "correct its configuration")
        while not _runs(session, connect_url, name):
            if time.monotonic() > deadline:
                raise InfrastructureError(
                    where, f"it does not run after {_TIMEOUT_SECONDS:.0f} s", "see the log of Connect"
                )
            time.sleep(_POLL_SECONDS)


@contextmanager
def _asking(connect_url: str) -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.trust_env = False
        try:
            yield session
        except requests.RequestException as exc:
            raise InfrastructureError(
                "Kafka Connect", f"it does not answer at {connect_url}: {exc}", "start it with `cdc-lake stack up`"
            ) from exc


def _runs(session: requests.Session, connect_url: str, name: str) -> bool:
    answer = session.get(f"{connect_url}/connectors/{name}/status", timeout=_TIMEOUT_SECONDS)
    if answer.status_code == requests.codes.not_found:  # the configuration has not been read back yet
        return False
    answer.raise_for_status()
    status: dict[str, Any] = answer.json()
    parts = [status["connector"], *status["tasks"]]
    for part in parts:
        if part["state"] == "FAILED":
            raise InfrastructureError(
                f"connector {name}", f"it failed: {_gist(part.get('trace', ''))}", "remove the cause, then put it again"
            )
    return bool(status["tasks"]) and all(part["state"] == "RUNNING" for part in parts)


def _gist(trace: str) -> str:
    lines = [line.strip() for line in trace.splitlines() if not line.lstrip().startswith("at ")]
    return "\n".join(lines[:_TRACE_LINES])


def _reason(answer: requests.Response) -> str:
    try:
        return str(answer.json()["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text


def _avro_converter(side: str, registry: str) -> dict[str, str]:
    prefix = f"{side}.converter"
    return {
        prefix: "io.apicurio.registry.utils.converter.AvroConverter",
        f"{prefix}.apicurio.registry.url": f"{registry}/apis/registry/v3",
        f"{prefix}.apicurio.registry.auto-register": "true",
        # Else whole events are written with the row's old schema for up to 30 s after an ALTER TABLE: silent data loss.
        f"{prefix}.apicurio.registry.dereference-schema": "true",
    }
