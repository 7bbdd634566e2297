"""Fixtures of the tests that submit jobs."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import requests
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from submitting import CHECKOUT, PROGRAMS, RECORDS, Ended, Submit
from support import wire

from cdc_lake.cli.app import execute
from cdc_lake.demo.jobs import SMALL_JVM
from cdc_lake.demo.servers.stack import Stack

TOPIC = "submitted.public.thing"
_THING = wire.Table(TOPIC, {"id": wire.INT32, "name": wire.optional(wire.STRING)}, ["id"])
_EVENT = wire.envelope(_THING)
_UNWRAP = wire.Unwrap(["op", "source.ts_ms"])


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """The folder of a test's lake, which may not exist yet."""
    return tmp_path / "lake"


@pytest.fixture
def submit(lake: Path, tmp_path: Path) -> Submit:
    """`spark-submit <before> jobs/<layer>.py <flags>`, with the settings of `variables` in the environment."""

    def run(
        layer: str,
        *flags: str,
        job: Path | None = None,
        before: Sequence[str] = (),
        seconds: int = 300,
        **variables: str,
    ) -> Ended:
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
            timeout=seconds,
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
    """The same jobs in this process, on its session: `cdc-lake run <layer> <flags>`."""

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
    """Environment variables of every job."""
    return {
        "CDC_LAKE__LAKE__ROOT": str(lake),
        "CDC_LAKE__STACK__FOLDER": str(folder / "nothing-runs-here"),
        "CDC_LAKE__GOLD__MODELS": str(CHECKOUT / "conf" / "gold"),
    }


@pytest.fixture(scope="session")
def topic(stack: Stack) -> str:
    """A topic of a few events, with their schemas in the registry."""
    kafka, registry = stack.endpoints["kafka"], stack.endpoints["registry"]
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(30)
    schemas = {"key": _THING.key, "value": _UNWRAP.schema(_EVENT)}
    ids = {side: _register(registry, f"{TOPIC}-{side}", schema) for side, schema in schemas.items()}

    def framed(side: wire.Side, content: dict[str, Any] | None) -> bytes:
        return wire.framed("id4", f"id:{ids[side]}", wire.avro_record(schemas[side], content), side)[0]

    producer = Producer({"bootstrap.servers": kafka})
    for number in range(RECORDS):
        event = wire.event(_THING, "c", after={"id": number, "name": f"name {number}"}, ts_ms=number)
        (row,) = _UNWRAP.values(_EVENT, event)
        producer.produce(TOPIC, key=framed("key", {"id": number}), value=framed("value", row))
    assert producer.flush(30) == 0
    return TOPIC


def _register(registry: str, name: str, schema: wire.Schema) -> int:
    content = {"content": json.dumps(wire.avro_schema(schema)), "contentType": "application/json"}
    answer = requests.post(
        f"{registry}/apis/registry/v3/groups/default/artifacts",
        json={"artifactId": name, "artifactType": "AVRO", "firstVersion": {"content": content}},
        timeout=10,
    )
    answer.raise_for_status()
    content_id: int = answer.json()["version"]["contentId"]
    return content_id
