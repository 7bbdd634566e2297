"""Rows of megabytes through the embedded servers, and a connector that fails while the test waits for it."""

import os
from collections.abc import Iterator
from functools import partial

import psycopg
import pytest
import requests
from confluent_kafka import Consumer, TopicPartition
from psycopg.conninfo import make_conninfo

from cdc_lake.demo import sample
from cdc_lake.demo.servers.connectors import check_connector, postgres_connector_config, put_connector
from cdc_lake.demo.servers.jvm_servers import MAX_RECORD_BYTES
from cdc_lake.demo.servers.stack import Stack
from cdc_lake.errors import InfrastructureError

pytestmark = pytest.mark.core


NAME = "papers"
LARGE = 3 << 20
WAIT_SECONDS = 120


@pytest.fixture
def dsn(stack: Stack) -> Iterator[str]:
    """A database whose only table a connector replicates."""
    url, connect = stack.endpoints["postgres"], stack.endpoints["connect"]
    dsn = make_conninfo(url, dbname=NAME)
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {NAME}".encode())
        with psycopg.connect(dsn, autocommit=True) as source:
            source.execute("CREATE TABLE paper (id int PRIMARY KEY, body text)")
        config = postgres_connector_config(
            stack.endpoints, database=NAME, topic_prefix=NAME, tables=["public.paper"], envelope_tables=[]
        )
        put_connector(connect, NAME, config)
        yield dsn
        requests.delete(f"{connect}/connectors/{NAME}", timeout=30).raise_for_status()
        admin.execute(f"DROP DATABASE {NAME} WITH (FORCE)".encode())


def test_large_row_arrives_and_oversize_row_is_an_error(stack: Stack, dsn: str) -> None:
    wait = partial(
        sample.wait_until_sent,
        dsn,
        NAME,
        WAIT_SECONDS,
        check=partial(check_connector, stack.endpoints["connect"], NAME),
    )
    with psycopg.connect(dsn, autocommit=True) as source:
        source.execute("INSERT INTO paper VALUES (1, %s)", [os.urandom(LARGE // 2).hex()])
        wait()
        consumer = Consumer({"bootstrap.servers": stack.endpoints["kafka"], "group.id": "none"})
        consumer.assign([TopicPartition(f"{NAME}.public.paper", 0, 0)])
        record = consumer.poll(30)
        consumer.close()
        assert record is not None
        assert len(record.value() or b"") > LARGE

        source.execute("INSERT INTO paper VALUES (2, repeat('x', %s))", [MAX_RECORD_BYTES])
        with pytest.raises(InfrastructureError, match=rf"(?s)connector {NAME}: it failed: .*RecordTooLargeException"):
            wait()
