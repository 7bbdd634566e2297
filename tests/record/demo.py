"""The recording of `cdc-lake demo --recorded`: a table of the sample, difficult changes, and its rows in Postgres."""

import gzip
import io
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

import fastavro
import psycopg
from confluent_kafka import Message
from psycopg import sql

from cdc_lake.demo import sample
from cdc_lake.demo.comparer import CATALOG, columns_of
from cdc_lake.demo.hard_changes import FILM, Generate, Player
from cdc_lake.demo.recorded import RECORDING, TOPIC
from cdc_lake.demo.servers.connectors import postgres_connector_config, put_connector
from cdc_lake.demo.tap import messages
from tests.support.wire import Side, opened

from .registry import part_the_ids, schemas

_DATABASE, _TABLE = "pagila", "public.film"
_DELETE: Final = (
    "DELETE FROM film WHERE film_id > 150 OR (film_id > 8 AND film_id % 7 > 0 AND length(film::text) > 2000)"
)
"""Leaves about 100 rows: the most difficult ones, and few with wide values, which do not compress."""
_WIDE_SHARE: Final = 0.4
_SEED: Final = 1
_SENT_SECONDS: Final = 120.0
_CHANGES: Final = {
    Player.update: 45,
    Player.insert: 12,
    Player.several: 12,
    Player.wide_then_narrow: 6,
    Player.delete: 15,
    Player.wide: 4,
    Player.reinsert: 8,
    Player.key_change: 12,
    Player.come_and_go: 6,
}
"""How many transactions of each kind are made, in random order."""
_GOLD: Final = """
    SELECT to_json(gold)::text FROM (
        SELECT coalesce(rating::text, '(none)') AS rating, count(*) AS films, round(avg(rental_rate), 2) AS rental_rate
        FROM film GROUP BY 1 ORDER BY 1) AS gold"""
"""The content of the gold model, as Postgres computes it."""
_ABOUT: Final = (
    "A recorded topic: what Debezium 3.6.3 sent of the table film, by Apicurio's AvroConverter 3.0.9 with "
    "dereference-schema=true. Kafka 4.1.1, Apicurio Registry 3.0.9, Postgres 16. Headers, keys and values are in hex. "
    "Records with a note were appended after recording. `rows` and `gold` are what Postgres had at the end. By "
    "`python -m tests.record demo`."
)
_BROKEN_BYTES: Final = 10


def record_demo(endpoints: Mapping[str, str]) -> None:
    """Make the changes, and write what arrived and what Postgres has at the end.

    Args:
        endpoints: addresses of servers without any content.
    """
    registry = endpoints["registry"]
    part_the_ids(registry)
    dsn = sample.create(endpoints["postgres"], _DATABASE)
    with psycopg.connect(dsn, autocommit=True, options="-c timezone=UTC -c extra_float_digits=1") as source:
        source.execute(_DELETE.encode())
        ((films,),) = source.execute("SELECT count(*) FROM film")
        config = postgres_connector_config(endpoints, database=_DATABASE, topic_prefix=_DATABASE, tables=[_TABLE])
        put_connector(endpoints["connect"], _DATABASE, config)
        sample.wait_until_sent(dsn, _DATABASE, _SENT_SECONDS)
        _change(source)
        sample.wait_until_sent(dsn, _DATABASE, _SENT_SECONDS)
        catalog = source.execute(CATALOG, {"table": _TABLE}).fetchall()
        rows = _texts(source, _rows_query(catalog))
        gold = _texts(source, _GOLD)
    arrived = list(messages(endpoints["kafka"], [TOPIC]))
    texts = {
        reference: schema["text"]
        for reference, schema in schemas(registry, [_reference(m, side) for m in arrived for side in ("key", "value")])
    }
    key, appended = _appended(arrived, texts)
    content = {
        "about": _ABOUT,
        "snapshot": films,
        "story_key": key,
        "schemas": texts,
        "records": [*map(_record, arrived), *appended],
        "catalogue": catalog,
        "rows": rows,
        "gold": gold,
    }
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    RECORDING.write_bytes(gzip.compress(text.encode(), mtime=0))
    print(f"{RECORDING.name}: {len(content['records'])} records, {RECORDING.stat().st_size // 1000} kB", flush=True)


def _change(source: psycopg.Connection) -> None:
    random = Random(_SEED)
    seldom_wide = {name: _seldom(generate) for name, generate in FILM.wide.items()}
    player = Player(source, replace(FILM, wide=seldom_wide), random)
    changes = [change for change, times in _CHANGES.items() for _ in range(times)]
    random.shuffle(changes)
    for change in changes:
        with source.transaction():
            change(player)


def _seldom(generate: Generate) -> Generate:
    """Makes most values null, to keep the recording small."""
    return lambda random: generate(random) if random.random() < _WIDE_SHARE else None


def _rows_query(catalog: Sequence[Sequence[Any]]) -> str:
    """A query for the table's rows, each as a JSON array of what the comparer reads from Postgres."""
    columns = columns_of(catalog)
    cells = ", ".join(column.rule.select.format(c=sql.Identifier(column.name).as_string()) for column in columns)
    return f"SELECT json_build_array({cells})::text FROM {_TABLE} ORDER BY film_id"


def _texts(source: psycopg.Connection, query: str) -> list[str]:
    return [text for (text,) in source.execute(query.encode())]


def _record(message: Message) -> dict[str, Any]:
    return {
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp_ms": message.timestamp()[1],
        "headers": [[name, value.hex()] for name, value in message.headers() or []],
        "key": message.key().hex(),
        "value": message.value().hex(),
    }


def _reference(message: Message, side: Side) -> str:
    data = message.key() if side == "key" else message.value()
    return str(opened(data, message.headers() or [], side).reference)


def _appended(arrived: Sequence[Message], texts: Mapping[str, str]) -> tuple[int, list[dict[str, Any]]]:
    """The film with most updates, and two more records: its first update again, and its last one without its end."""
    updates = defaultdict[int, list[Message]](list)
    for message in arrived:
        if _decoded(message, "value", texts)["__op"] == "u":
            updates[_decoded(message, "key", texts)["film_id"]].append(message)
    key = max(updates, key=lambda film: len(updates[film]))
    first, *_, last = updates[key]
    replayed, broken, end = _record(first), _record(last), arrived[-1].offset()
    return key, [
        {"note": f"copy of offset {first.offset()}", **replayed, "offset": end + 1},
        {
            "note": f"copy of offset {last.offset()} without its last {_BROKEN_BYTES} bytes",
            **broken,
            "offset": end + 2,
            "value": broken["value"][: -2 * _BROKEN_BYTES],
        },
    ]


def _decoded(message: Message, side: Side, texts: Mapping[str, str]) -> Any:
    schema = fastavro.parse_schema(json.loads(texts[_reference(message, side)]))
    data = message.key() if side == "key" else message.value()
    return fastavro.schemaless_reader(io.BytesIO(opened(data, message.headers() or [], side).body), schema, None)
