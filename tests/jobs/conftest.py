"""Fixtures of the tests that submit jobs."""

import io
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fastavro
import pytest
import requests
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from submitting import CHECKOUT, PROGRAMS, RECORDS, Ended, Submit

from cdc_lake.cli.app import execute
from cdc_lake.embedded.demo import SMALL_JVM
from cdc_lake.embedded.stack import Stack

TOPIC = "submitted.public.thing"
_KEY = {"type": "record", "name": "Key", "namespace": TOPIC, "fields": [{"name": "id", "type": "int"}]}
_VALUE = {
    "type": "record",
    "name": "Value",
    "namespace": TOPIC,
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "__deleted", "type": ["null", "string"], "default": None},
        {"name": "__op", "type": ["null", "string"], "default": None},
        {"name": "__source_ts_ms", "type": ["null", "long"], "default": None},
    ],
}


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Where the lake of a test is, or is going to be."""
    return tmp_path / "lake"


@pytest.fixture
def submit(lake: Path, tmp_path: Path) -> Submit:
    """`spark-submit <before> jobs/<layer>.py <flags>`, with the settings of `variables` in the environment."""

    def run(layer: str, *flags: str, job: Path | None = None, before: Sequence[str] = (), **variables: str) -> Ended:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("CDC_LAKE")}
        done = subprocess.run(
            [
                *(str(PROGRAMS / "spark-submit"), "--conf", f"spark.driver.extraJavaOptions={SMALL_JVM}"),
                *("--master", "local[2]", *before, str(job or CHECKOUT / "jobs" / f"{layer}.py"), *flags),
            ],
            env={
                **inherited,
                "PATH": f"{PROGRAMS}{os.pathsep}{inherited['PATH']}",
                **settings(lake, tmp_path),
                **variables,
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def call(
    spark: SparkSession,
    lake: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Submit:
    """The same jobs in this process, on the session that it has: `cdc-lake run <layer> <flags>`."""

    def run(layer: str, *flags: str, **variables: str) -> Ended:
        for name in [name for name in os.environ if name.startswith("CDC_LAKE")]:
            monkeypatch.delenv(name)
        for name, value in {**settings(lake, tmp_path), **variables}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(tmp_path)
        with pytest.raises(SystemExit) as ended:
            execute("run", layer, *flags)
        code = ended.value.code
        assert isinstance(code, int)
        return Ended(code, *capsys.readouterr())

    return run


def settings(lake: Path, folder: Path) -> dict[str, str]:
    """The environment's, of every job."""
    return {"CDC_LAKE__LAKE__ROOT": str(lake), "CDC_LAKE__STACK__FOLDER": str(folder / "nothing-runs-here")}


@pytest.fixture(scope="session")
def topic(stack: Stack) -> str:
    """A topic of a few events, their schemas in the registry."""
    kafka, registry = stack.endpoints["kafka"], stack.endpoints["registry"]
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(30)
    ids = [_register(registry, f"{TOPIC}-{side}", schema) for side, schema in (("key", _KEY), ("value", _VALUE))]
    producer = Producer({"bootstrap.servers": kafka})
    for number in range(RECORDS):
        event = {"id": number, "name": f"name {number}", "__deleted": "false", "__op": "c", "__source_ts_ms": number}
        producer.produce(TOPIC, key=_framed(ids[0], _KEY, event), value=_framed(ids[1], _VALUE, event))
    assert producer.flush(30) == 0
    return TOPIC


def _register(registry: str, name: str, schema: dict[str, Any]) -> int:
    content = {"content": json.dumps(schema), "contentType": "application/json"}
    answer = requests.post(
        f"{registry}/apis/registry/v3/groups/default/artifacts",
        json={"artifactId": name, "artifactType": "AVRO", "firstVersion": {"content": content}},
        timeout=10,
    )
    answer.raise_for_status()
    content_id: int = answer.json()["version"]["contentId"]
    return content_id


def _framed(schema_id: int, schema: dict[str, Any], event: dict[str, Any]) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), event)
    return b"\0" + schema_id.to_bytes(4, "big") + body.getvalue()
