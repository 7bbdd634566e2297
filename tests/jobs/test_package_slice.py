"""The jobs from a package on a cluster that loses a worker, and with the lake on S3: a small part of
tests/servers/test_packages.py.
"""

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import boto3
import pytest
from conformance.by_lake import table_rows
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import StaticTable, Table
from submitting import CHECKOUT, RECORDS, Submit
from support.buckets import LAKE, Bucket
from support.events import OPTIONAL_STRING, Topic
from support.iceberg_rest import jars_of, proxy, rest_catalog
from support.lake import MOVABLE_TYPES
from support.plain_spark import PlainSpark, cluster, losing_a_worker, remove
from support.sink_files import write_files

from cdc_lake.demo.jobs import Jobs
from cdc_lake.demo.servers.stack import Stack
from cdc_lake.spark.jars import sha256

ALL_TYPES = json.dumps([held_in.model_dump(exclude_none=True) for held_in in MOVABLE_TYPES.values()])
IN_TURN = Path(__file__).with_name("in_turn.py")
THING = "submitted/public/thing"
IN_CATALOG = ("submitted_silver", "public_thing")
MODEL = """-- name: names
-- keys: [id]
-- sources: {thing: submitted.public.thing}
SELECT id, name FROM thing
"""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainSpark]:
    folder = tmp_path_factory.mktemp("plain")
    yield PlainSpark.make(folder)
    remove(folder)


@pytest.fixture
def models(tmp_path: Path) -> str:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "names.sql").write_text(MODEL, encoding="utf-8")
    return str(tmp_path / "models")


def in_turn(jobs: Iterable[Sequence[str]]) -> list[str]:
    """The arguments of in_turn.py, for layers and their flags."""
    return [part for layer, *flags in jobs for part in ("--", str(CHECKOUT / "jobs" / f"{layer}.py"), *flags)]


def assert_all_is_there(lake: Path, *tables: str) -> None:
    """All tables have every record, read without Spark."""
    expected = {(number, f"name {number}") for number in range(RECORDS)}
    for table in tables:
        found = table_rows(str(lake / table))
        assert {(row["id"], row["name"]) for row in found} == expected, table
        assert len(found) == RECORDS


def test_package_manifest_lists_every_file(plain: PlainSpark) -> None:
    plan = plain.plan
    there = {path.relative_to(plain.package).as_posix() for path in plain.package.rglob("*") if path.is_file()}

    assert {file.path: file.sha256 for file in plan.files} == {
        name: sha256(plain.package / name) for name in there - {"upload.json"}
    }
    only_on_clusters = {file.path.split("/")[1].split("-")[0] for file in plan.files if file.on == ("cluster",)}
    assert only_on_clusters == {"delta", "hudi", "iceberg", "sqlite"}
    assert {file.path for file in plan.needed_on("emr")} >= {
        "jobs/bronze.py",
        "environment.tar.gz",
        "conf/cdc-lake.yml",
    }


@pytest.mark.deep
def test_node_without_python_fails_with_a_clear_error(plain: PlainSpark, tmp_path: Path) -> None:
    (tmp_path / "dirname").symlink_to("/usr/bin/dirname")
    (tmp_path / "hostname").symlink_to("/usr/bin/hostname")

    ended = subprocess.run(
        [str(plain.folder / "environment" / "bin" / "python"), "-c", ""],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )

    assert ended.returncode == 127
    assert "no Python 3.11 on the PATH" in ended.stderr


def test_packaged_jobs_survive_the_loss_of_a_worker(
    plain: PlainSpark, stack: Stack, topic: str, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(lake.parent)
    bronze, silver = (str(plain.package / "jobs" / f"{layer}.py") for layer in ("bronze", "silver"))
    with cluster(plain) as on, losing_a_worker(on, lake / "silver", replaced=False) as seen:
        platform = replace(plain.platform(on.master, "--executor-memory", "1g", attempts=2), jobs=IN_TURN.parent)
        Jobs(platform, stack, str(lake), "delta").submit(IN_TURN.stem, "--table", topic, "--", bronze, "--", silver)

    assert seen, "no worker was lost"
    assert [row["status"] for row in table_rows(str(lake / "bronze" / THING))] == ["ok"] * RECORDS
    assert_all_is_there(lake, f"silver/{THING}")
    assert not (lake.parent / "environment").exists(), "the package was unpacked where it was submitted from"


def test_all_layers_and_sink_files_run_on_s3(
    submit: Submit, stack: Stack, topic: str, aws: str, models: str, tmp_path: Path
) -> None:
    bucket, in_files = Bucket(aws), Topic({"name": OPTIONAL_STRING})
    records = (in_files.change("c", number, {"name": f"name {number}"}) for number in range(RECORDS))
    for file in write_files(tmp_path / "landing", records, in_files.registry):
        bucket.client.upload_file(str(file), "lake", str(file.relative_to(tmp_path)))
    of_files = tmp_path / "of-files.yml"
    of_files.write_text("files: {root: s3a://lake/landing}\ndefaults: {merge: {keys: [id]}}\n", encoding="utf-8")
    jobs = (
        ("bronze", "--table", topic),
        ("silver", "--table", topic),
        ("gold", "--model", "names"),
        ("bronze", "--table", in_files.table, "--config", str(of_files)),
    )

    settings = {
        "CDC_LAKE__STACK__FOLDER": str(stack.folder),
        "CDC_LAKE__LAKE__ROOT": LAKE,
        "CDC_LAKE__GOLD__MODELS": models,
        "CDC_LAKE__DEFAULTS__STORAGE": ALL_TYPES,
    }

    ended = submit("-", *in_turn(jobs), job=IN_TURN, before=bucket.flags(), **settings)

    assert ended.code == 0, ended.said
    no_cluster = ("--master", "spark://127.0.0.1:1")  # the session could not be created
    look = ("--", str(IN_TURN.with_name("look.py")), "status", "--json")
    again = submit("-", *in_turn(jobs[:3]), *look, job=IN_TURN, before=(*bucket.flags(), *no_cluster), **settings)
    assert again.code == 0, again.said
    *reports, _ = again.out.splitlines()
    assert "".join(reports).count("unchanged") == 1 + len(MOVABLE_TYPES) + 1
    behind = [(one["layer"], one["behind_records"], one["quarantined"]) for one in again.report["tables"]]
    assert sorted(behind, key=str) == [
        ("bronze", 0, 0),
        ("bronze", None, 0),  # the broker does not have that topic
        ("gold", None, None),
        *[("silver", 0, 0)] * len(MOVABLE_TYPES),
        *[("silver", RECORDS, None)] * len(MOVABLE_TYPES),
    ]
    brought = tmp_path / "brought"
    bucket.download(brought)
    silver = (f"{layer}/{THING}" for layer in ("silver", "silver_hudi_cow", "silver_hudi_mor"))
    assert_all_is_there(brought, *silver, "gold/names")
    rows = table_rows(str(brought / "bronze" / in_files.table.replace(".", "/")))
    assert {(row["key"], row["offset"]) for row in rows} == {(f'{{"id":{n}}}', n) for n in range(RECORDS)}
    kinds = {name.split("/")[1] for name in bucket.names() if name.startswith("lake/")}
    assert kinds >= {"bronze", "silver", "gold", "_schemas", "_runs", "_leases"}
    assert not [name for name in bucket.names() if name.endswith(".tmp")]


def test_doctor_tries_a_lake_on_s3(stack: Stack, topic: str, aws: str, tmp_path: Path) -> None:
    bucket = Bucket(aws)
    settings = {**os.environ, "CDC_LAKE__STACK__FOLDER": str(stack.folder)}
    settings["SPARK_CONF_DIR"] = str(bucket.spark_conf(tmp_path / "conf"))

    def found(root: str) -> dict[str, str]:
        ended = subprocess.run(
            [sys.executable, str(IN_TURN.with_name("look.py")), "doctor", "--table", topic, "--json"],
            env={**settings, "CDC_LAKE__LAKE__ROOT": root},
            capture_output=True,
            text=True,
            check=False,
        )
        return {one["check"]: one["status"] for one in json.loads(ended.stdout)["findings"]}

    good, absent = found(LAKE), found("s3a://absent/lake")

    assert (good["jars"], good["lake"], good["retention"]) == ("ok", "ok", "ok")
    assert not [name for name in bucket.names() if not name.endswith("/")], "the file is removed"
    assert (absent["lake"], absent["retention"]) == ("fail", "skipped")


def test_iceberg_on_s3_needs_a_catalog_and_uses_it(
    submit: Submit, stack: Stack, topic: str, aws: str, tmp_path: Path
) -> None:
    bucket, catalog = Bucket(aws), tmp_path / "catalog.db"
    settings = {
        "CDC_LAKE__STACK__FOLDER": str(stack.folder),
        "CDC_LAKE__LAKE__ROOT": LAKE,
        "CDC_LAKE__DEFAULTS__STORAGE": json.dumps([{"format": "iceberg", "type": "mor"}]),
    }
    jobs = in_turn((("bronze", "--table", topic), ("silver", "--table", topic)))

    refused = submit("-", *jobs, job=IN_TURN, before=bucket.flags(), **settings)
    assert refused.code == 2
    assert "Iceberg tables need a catalog" in refused.said

    uri = {"CDC_LAKE__LAKE__ICEBERG__URI": f"jdbc:sqlite:{catalog}"}
    ended = submit("-", *jobs, job=IN_TURN, before=bucket.flags(), **settings, **uri)

    assert ended.code == 0, ended.said
    with sqlite3.connect(catalog) as tables:
        ((metadata,),) = tables.execute("SELECT metadata_location FROM iceberg_tables").fetchall()
    assert_iceberg_rows(StaticTable.from_metadata(metadata, bucket.of_pyiceberg))


def submit_iceberg(
    submit: Submit, stack: Stack, topic: str, flags: Iterable[str], catalog: Mapping[str, str], **properties: str
) -> str:
    """Land a topic and merge it into an Iceberg table on S3, with a catalog; the job's output."""
    ended = submit(
        "-",
        *in_turn((("bronze", "--table", topic), ("silver", "--table", topic))),
        job=IN_TURN,
        before=flags,
        CDC_LAKE__STACK__FOLDER=str(stack.folder),
        CDC_LAKE__LAKE__ROOT=LAKE,
        CDC_LAKE__LAKE__ICEBERG=json.dumps({**catalog, "properties": properties}),
        CDC_LAKE__DEFAULTS__STORAGE=json.dumps([{"format": "iceberg", "type": "mor"}]),
        CATALOG_CREDENTIAL="lake:canary-1",
    )
    assert ended.code == 0, ended.said
    return ended.said


def assert_iceberg_rows(table: Table) -> None:
    found = {(row["id"], row["name"]) for row in table.scan().to_arrow().to_pylist()}
    assert found == {(number, f"name {number}") for number in range(RECORDS)}


def test_iceberg_on_s3_uses_a_rest_catalog(submit: Submit, stack: Stack, topic: str, aws: str, tmp_path: Path) -> None:
    bucket, events = Bucket(aws), tmp_path / "events"
    events.mkdir()
    logged = {"enabled": "true", "dir": events.as_uri(), "compress": "false"}
    more = (part for name, value in logged.items() for part in ("--conf", f"spark.eventLog.{name}={value}"))
    with rest_catalog(tmp_path / "rest", bucket.classpath(tmp_path)) as address:
        catalog = {"catalog": "rest", "uri": address}
        login = {"credential": "env:CATALOG_CREDENTIAL"}
        said = submit_iceberg(submit, stack, topic, (*bucket.flags(), *more), catalog, **login)
        assert_iceberg_rows(RestCatalog("rest", uri=address, **bucket.of_pyiceberg).load_table(IN_CATALOG))

    bucket.download(tmp_path / "brought")
    texts = [file.read_text() for folder in (events, tmp_path / "brought" / "_runs") for file in folder.iterdir()]
    assert len(texts) > 2
    assert not [text for text in (said, *texts) if "canary-1" in text]


def test_iceberg_on_s3_signs_requests_to_a_rest_catalog(
    submit: Submit, stack: Stack, topic: str, aws: str, tmp_path: Path
) -> None:
    bucket = Bucket(aws)
    with rest_catalog(tmp_path / "rest", bucket.classpath(tmp_path)) as address, proxy(address) as server:
        catalog = {"catalog": "rest", "uri": server.url}
        signing = {"sigv4-enabled": "true", "signing-name": "glue", "signing-region": "eu-central-1"}
        properties = {**bucket.of_iceberg, **{f"rest.{name}": value for name, value in signing.items()}}
        submit_iceberg(submit, stack, topic, bucket.flags(*jars_of("aws")), catalog, **properties)
        assert_iceberg_rows(RestCatalog("rest", uri=address, **bucket.of_pyiceberg).load_table(IN_CATALOG))

    signed = {request.headers["Authorization"].partition(",")[0] for request in server.requests}
    assert {re.sub("/[0-9]{8}/", "/day/", text) for text in signed} == {
        "AWS4-HMAC-SHA256 Credential=nobody/day/eu-central-1/glue/aws4_request"
    }


def test_iceberg_on_s3_uses_glue(submit: Submit, stack: Stack, topic: str, aws: str) -> None:
    bucket = Bucket(aws)
    properties = {**bucket.of_iceberg, "glue.endpoint": aws}

    submit_iceberg(submit, stack, topic, bucket.flags(*jars_of("aws")), {"catalog": "glue"}, **properties)

    glue = boto3.client("glue", endpoint_url=aws, region_name="eu-central-1")
    database, name = IN_CATALOG
    metadata = glue.get_table(DatabaseName=database, Name=name)["Table"]["Parameters"]["metadata_location"]
    assert_iceberg_rows(StaticTable.from_metadata(metadata, bucket.of_pyiceberg))
