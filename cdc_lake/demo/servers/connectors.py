"""Create and check connectors of the embedded Kafka Connect."""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import requests

from cdc_lake.errors import InfrastructureError

_ADDED_FIELDS = "op,db,schema,table,lsn,ts_ms,source.ts_ms,source.ts_us,source.txId,source.snapshot,source.sequence"
_WITH_TRUNCATE = {"skipped.operations": "none"}
"""An option with which complete change events include TRUNCATE; flattened ones never do."""
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
    """Configuration of a Debezium connector for tables of an embedded Postgres, with Apicurio's Avro converter.

    Args:
        endpoints: the stack's.
        tables: all captured tables, as `<schema>.<table>`; a partitioned table without its partitions.
        envelope_tables: the tables whose records stay complete change events; others are flattened.
        signal_table: Debezium's signal table, for example for incremental snapshots.
    """
    server = urlsplit(endpoints["postgres"])
    slot = re.sub(r"[^a-z0-9_]", "_", topic_prefix.lower())
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
        # Otherwise a partitioned table arrives under its partitions' names, and twice in a snapshot.
        "publish.via.partition.root": "true",
        "topic.prefix": topic_prefix,
        # Commas are separators, even if they are escaped.
        "table.include.list": ",".join(re.escape(table).replace(",", r"\x2c") for table in captured),
        # Avro allows fewer characters in names than Postgres.
        "schema.name.adjustment.mode": "avro",
        "field.name.adjustment.mode": "avro",
        **({"signal.data.collection": signal_table} if signal_table else {}),
        "tombstones.on.delete": "true",
        "poll.interval.ms": "100",
        "extended.headers.enabled": "false",
        **(_flattening(topic_prefix, envelope_tables) if set(tables) - set(envelope_tables) else _WITH_TRUNCATE),
        **_avro_converter("key", endpoints["registry"]),
        **_avro_converter("value", endpoints["registry"]),
    }


def _flattening(topic_prefix: str, envelope_tables: Sequence[str]) -> dict[str, str]:
    # `message` is the topic of pg_logical_emit_message.
    topics = (re.sub(r"[^a-zA-Z0-9._-]", "_", name) for name in (*envelope_tables, "message"))
    whole = "|".join(map(re.escape, topics))
    return {
        "transforms": "unwrap",
        "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
        "transforms.unwrap.delete.tombstone.handling.mode": "rewrite",
        "transforms.unwrap.add.fields": _ADDED_FIELDS,
        "transforms.unwrap.predicate": "whole",
        "transforms.unwrap.negate": "true",
        "predicates": "whole",
        "predicates.whole.type": "org.apache.kafka.connect.transforms.predicates.TopicNameMatches",
        "predicates.whole.pattern": rf"{re.escape(topic_prefix)}\.({whole})",
    }


def check_connector(connect_url: str, name: str) -> None:
    """Check that a connector and its task have not failed.

    Raises:
        InfrastructureError: one has failed, with the first lines of its trace; or Connect does not respond.
    """
    with _session(connect_url) as session:
        _is_running(session, connect_url, name)


def put_connector(connect_url: str, name: str, config: Mapping[str, str]) -> None:
    """Create or change a connector and wait until it and its task run.

    Raises:
        InfrastructureError: Connect rejects the configuration, or the connector fails or does not start in time.
    """
    where = f"connector {name}"
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    with _session(connect_url) as session:
        answer = session.put(f"{connect_url}/connectors/{name}/config", json=dict(config), timeout=_TIMEOUT_SECONDS)
        if not answer.ok:
            raise InfrastructureError(where, f"Connect rejects it: {_reason(answer)}", "correct its configuration")
        while not _is_running(session, connect_url, name):
            if time.monotonic() > deadline:
                raise InfrastructureError(
                    where, f"it is not running after {_TIMEOUT_SECONDS:.0f} s", "see Connect's log"
                )
            time.sleep(_POLL_SECONDS)


@contextmanager
def _session(connect_url: str) -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.trust_env = False
        try:
            yield session
        except requests.RequestException as exc:
            raise InfrastructureError(
                "Kafka Connect", f"it does not respond at {connect_url}: {exc}", "start it with `cdc-lake stack up`"
            ) from exc


def _is_running(session: requests.Session, connect_url: str, name: str) -> bool:
    answer = session.get(f"{connect_url}/connectors/{name}/status", timeout=_TIMEOUT_SECONDS)
    if answer.status_code == requests.codes.not_found:  # Connect has not read the configuration back yet
        return False
    answer.raise_for_status()
    status: dict[str, Any] = answer.json()
    parts = [status["connector"], *status["tasks"]]
    for part in parts:
        if part["state"] == "FAILED":
            raise InfrastructureError(
                f"connector {name}", f"it failed: {_gist(part.get('trace', ''))}", "fix the cause, then create it again"
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
        # Otherwise events use the row's old schema for up to 30 s after an ALTER TABLE, which silently loses data.
        f"{prefix}.apicurio.registry.dereference-schema": "true",
    }
