"""Messages and exit codes of jobs: called in this process, or submitted if the process matters.

Bronze is submitted in test_json_report.py, silver in test_faults.py, and all layers in test_package_slice.py.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import zipfile
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from submitting import CHECKOUT, RECORDS, Submit

from cdc_lake.demo.servers.stack import Stack
from cdc_lake.runs import scheduler as turns
from cdc_lake.spark import conf as conf_module
from cdc_lake.spark.conf import spark_home, write_spark_defaults
from cdc_lake.spark.jars import Jar, cache_folder, lock_file, read_lock
from cdc_lake.spark.session import SPARK_DEFAULTS
from cdc_lake.spark.versions import PROFILES, profile_name
from cdc_lake.tables.progress import SilverProgress

MANIFEST = "META-INF/MANIFEST.MF"


@pytest.fixture
def closed_port() -> int:
    """A port of this machine without a server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def tables(lake: Path) -> list[Path]:
    return [log.parent.relative_to(lake) for log in lake.rglob("_delta_log")]


@pytest.mark.core
def test_jobs_exit_0_and_print_and_store_their_reports(
    submit: Submit, call: Submit, stack: Stack, topic: str, lake: Path
) -> None:
    bronze = call("bronze", "--table", topic, "--json", CDC_LAKE__STACK__FOLDER=str(stack.folder))
    silver = call("silver", "--table", "submitted.*", "--json")

    assert (bronze.code, silver.code) == (0, 0), bronze.said + silver.said
    landed, folded = bronze.report["tables"][0], silver.report["tables"][0]
    assert (landed["table"], landed["status"], landed["rows"]["ok"]) == (topic, "ok", RECORDS)
    assert (folded["table"], folded["status"], folded["rows"]["applied"]) == (topic, "ok", RECORDS)
    kept = {report["layer"]: report for report in map(read_json, (lake / "_runs").glob("*.json"))}
    assert kept == {"bronze": bronze.report, "silver": silver.report}
    assert "Traceback" not in bronze.said + silver.said

    maintained = submit("maintain", "--table", topic, "--json")

    assert (maintained.code, maintained.report["tables"][0]["status"]) == (0, "unchanged"), maintained.said
    assert "Deleted" not in maintained.out, "standard output is for reports, and VACUUM prints"
    assert sorted(map(str, tables(lake))) == ["bronze/submitted/public/thing", "silver/submitted/public/thing"]


def test_gold_refreshes_the_bundled_model_once(call: Submit, lake: Path) -> None:
    """Silver of one film that was rented and paid for twice, and of one that was deleted."""
    silver = {
        "film": [{"film_id": 1, "title": "ALIEN"}, {"film_id": 2, "title": "ALIENS", "__deleted": True}],
        "film_category": [{"film_id": 1, "category_id": 7}, {"film_id": 2, "category_id": 7}],
        "category": [{"category_id": 7, "name": "Horror"}],
        "inventory": [{"inventory_id": 3, "film_id": 1}],
        "rental": [{"rental_id": 4, "inventory_id": 3}, {"rental_id": 5, "inventory_id": 3}],
        "payment": [{"rental_id": rental, "amount": Decimal("4.99")} for rental in (4, 5)],
    }
    for table, rows in silver.items():
        metadata = {"userMetadata": SilverProgress(run_id="by hand", commit=1).to_metadata()}
        write_deltalake(
            lake / "silver" / "pagila" / "public" / table,
            pa.Table.from_pylist([{"__op": "c", "__deleted": False} | row for row in rows]),
            commit_properties=CommitProperties(custom_metadata=metadata),
        )

    made = call("gold", "--model", "film_revenue", "--json")
    again = call("gold", "--model", "film_*")

    assert (made.code, again.code) == (0, 0), made.said + again.said
    (table_report,) = made.report["tables"]
    assert (made.report["layer"], table_report["table"], table_report["status"]) == ("gold", "film_revenue", "ok")
    assert (table_report["rows"], len(table_report["consumed_to"])) == ({"written": 1}, 6)
    assert DeltaTable(lake / "gold" / "film_revenue").to_pyarrow_table().to_pylist() == [
        {"film_id": 1, "title": "ALIEN", "category": "Horror", "paid_rentals": 2, "revenue": Decimal("9.98")}
    ]
    assert re.search(r"film_revenue │ unchanged", again.said)
    assert "Traceback" not in made.said + again.said


@pytest.mark.core
def test_unknown_model_exits_2_before_spark_starts(call: Submit, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "build_session", None)

    done = call("gold", "--model", "film_revenues")

    assert done.code == 2
    assert re.search(r"error CDC-201 film_revenues: there is no such model .*similar names: film_revenue", done.said)
    assert [file.name for file in lake.iterdir()] == ["_runs"]


def read_json(file: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads(file.read_text())
    return content


@pytest.mark.core
def test_unknown_topic_exits_2_and_names_the_nearest(call: Submit, stack: Stack, topic: str) -> None:
    asked = topic.replace("thing", "thingy")

    done = call("bronze", "--table", asked, CDC_LAKE__STACK__FOLDER=str(stack.folder))

    assert done.code == 2
    assert re.search(rf"error CDC-201 {re.escape(asked)}: there is no such topic .*similar names: .*{topic}", done.said)
    assert "Traceback" not in done.said


@pytest.mark.core
def test_silver_without_bronze_exits_2_and_names_the_bronze_job(call: Submit) -> None:
    done = call("silver", "--table", "submitted.public.thing")

    assert done.code == 2
    assert "error CDC-201 submitted.public.thing: there is no table in" in done.said
    assert "bronze yet; run the bronze job first" in done.said
    assert "Traceback" not in done.said


@pytest.mark.core
def test_unavailable_broker_exits_10_and_is_named(call: Submit, closed_port: int, lake: Path) -> None:
    done = call(
        *("bronze", "--table", "submitted.public.thing"),
        CDC_LAKE__KAFKA__BOOTSTRAP_SERVERS=f"127.0.0.1:{closed_port}",
        CDC_LAKE__KAFKA__TIMEOUT_SECONDS="2",
        CDC_LAKE__REGISTRY__URL=f"http://127.0.0.1:{closed_port}",
    )

    assert done.code == 10
    assert f"error CDC-300 Kafka at 127.0.0.1:{closed_port}: the broker does not respond" in done.said
    assert "run again" in done.said
    assert "Traceback" not in done.said
    assert [file.name for file in lake.iterdir()] == ["_runs"]
    (report,) = map(read_json, (lake / "_runs").glob("*.json"))
    assert (report["layer"], report["tables"]) == ("bronze", []) and "does not respond" in str(report["error"])


@pytest.mark.core
def test_unavailable_registry_exits_10_without_a_commit(
    call: Submit, stack: Stack, topic: str, closed_port: int, lake: Path
) -> None:
    done = call(
        *("bronze", "--table", topic),
        CDC_LAKE__STACK__FOLDER=str(stack.folder),
        CDC_LAKE__REGISTRY__URL=f"http://127.0.0.1:{closed_port}",
        CDC_LAKE__REGISTRY__ATTEMPTS="2",
    )

    assert done.code == 10
    assert f"error CDC-300 schema registry at http://127.0.0.1:{closed_port}: it does not respond" in done.said
    assert "check that it runs and is reachable from this machine, then run again" in done.said
    assert "Traceback" not in done.said
    assert tables(lake) == []


@pytest.mark.core
def test_servers_never_started_exit_2_and_name_stack_up(call: Submit) -> None:
    done = call("bronze", "--table", "submitted.public.thing")

    assert done.code == 2
    assert "run `cdc-lake stack up`" in done.said


@pytest.mark.core
def test_unknown_key_exits_2_and_is_named_with_its_file(call: Submit, tmp_path: Path) -> None:
    file = tmp_path / "mine.yml"
    file.write_text("kafka:\n  bootstrap_server: localhost:9092\n")

    done = call("bronze", "--table", "t", "--config", str(file))

    assert done.code == 2
    assert str(file) in done.said
    assert "`kafka.bootstrap_server` is not a known key (did you mean `bootstrap_servers`?)" in done.said
    assert "Traceback" not in done.said


@pytest.mark.core
def test_missing_configuration_file_exits_2_and_is_named(call: Submit, tmp_path: Path) -> None:
    done = call("silver", "--table", "t", "--config", str(tmp_path / "absent.yml"))

    assert done.code == 2
    assert f"{tmp_path / 'absent.yml'}: the configuration file does not exist" in done.said
    assert "--config" in done.said


@pytest.mark.core
def test_unknown_flag_exits_2_before_spark_starts(call: Submit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "build_session", None)

    done = call("bronze", "--tabel", "t")

    assert done.code == 2
    assert "--tabel" in done.said


@pytest.mark.core
@pytest.mark.parametrize(("layer", "what"), [("bronze", "--table"), ("silver", "--table"), ("gold", "--model")])
def test_help_works_without_spark(layer: str, what: str) -> None:
    program = (
        "import runpy, sys\n"
        f"sys.argv = ['{layer}.py', '--help']\n"
        "try:\n"
        f"    runpy.run_path({str(CHECKOUT / 'jobs' / f'{layer}.py')!r}, run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    print(end.code, 'pyspark' in sys.modules)\n"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "0 False"
    for flag in (what, "--config", "--json"):
        assert flag in done.stdout


@pytest.fixture
def own_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Spark's jars in a separate cache, and the settings that make spark-submit use them."""
    cache = tmp_path / "jars"
    for jar in spark_jars():
        place = jar.path(cache)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(jar.path(cache_folder()), place)
    monkeypatch.setattr(conf_module, "spark_home", lambda: tmp_path)
    defaults = write_spark_defaults(spark_jars(), cache, SPARK_DEFAULTS)
    return {"CDC_LAKE_JARS": str(cache), "SPARK_CONF_DIR": str(defaults.parent)}


def spark_jars() -> tuple[Jar, ...]:
    return read_lock(lock_file(profile_name()))


def jar_of(artifact: str, own_jars: dict[str, str]) -> Path:
    jar = next(jar for jar in spark_jars() if jar.artifact.startswith(artifact))
    return jar.path(Path(own_jars["CDC_LAKE_JARS"]))


@pytest.mark.parametrize("artifact", ["delta-storage", pytest.param("commons-pool2", marks=pytest.mark.deep)])
def test_missing_jar_exits_2_and_is_named(submit: Submit, own_jars: dict[str, str], artifact: str) -> None:
    jar_of(artifact, own_jars).unlink()

    done = submit("silver", "--table", "t", **own_jars)

    assert done.code == 2
    assert re.search(rf"error CDC-202 .*:{artifact}:\S+ is missing.*run `cdc-lake jars fetch`", done.said)
    assert "Traceback" not in done.said


@pytest.mark.deep
def test_damaged_jar_exits_2_and_is_named(submit: Submit, own_jars: dict[str, str]) -> None:
    jar = jar_of("delta-spark", own_jars)
    os.truncate(jar, jar.stat().st_size // 2)

    done = submit("silver", "--table", "t", **own_jars)

    assert done.code == 2
    assert re.search(r"error CDC-202 .*:delta-spark_\S+ is damaged.*run `cdc-lake jars fetch`", done.said)
    assert "Traceback" not in done.said


def test_missing_jars_exit_2_and_name_the_fix(submit: Submit, tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    shutil.copy(spark_home() / "conf" / "spark-env.sh", tmp_path / "conf")  # names the missing Java

    done = submit("silver", "--table", "t", SPARK_CONF_DIR=str(tmp_path / "conf"))

    assert done.code == 2
    assert re.search(r"error CDC-202 Delta Lake: .*run `cdc-lake jars fetch`", done.said)
    assert "Traceback" not in done.said


@pytest.mark.deep
def test_wrong_java_version_exits_2_and_names_the_right_one(submit: Submit, tmp_path: Path) -> None:
    job = tmp_path / "silver.py"
    # Java sets this property itself and ignores -D, so the test changes the check's value instead.
    job.write_text(
        "import runpy\n"
        "from pyspark import SparkContext\n"
        "SparkContext._ensure_initialized()\n"
        "SparkContext._jvm.java.lang.System.setProperty('java.specification.version', '21')\n"
        f"runpy.run_path({str(CHECKOUT / 'jobs' / 'silver.py')!r}, run_name='__main__')\n"
    )

    done = submit("silver", "--table", "t", job=job)

    assert done.code == 2
    assert re.search(r"error CDC-202 Java other than 17 .* \(.* Java 21, .*\): .*; install Java 17 and set", done.said)
    assert "Traceback" not in done.said


@pytest.mark.deep
def test_hudi_catalog_instead_of_delta_catalog_exits_2(submit: Submit) -> None:
    catalog = "spark.sql.catalog.spark_catalog"

    done = submit(
        "silver",
        *("--table", "t"),
        before=["--conf", f"{catalog}=org.apache.spark.sql.hudi.catalog.HoodieCatalog"],
    )

    assert done.code == 2
    assert f"error CDC-202 HoodieCatalog as {catalog} (Spark {PROFILES[profile_name()].spark}, " in done.said
    assert f"Delta tables cannot be used by name or in SQL; with Delta's catalog, both formats can; set {catalog}=" in (
        done.said
    )
    assert "Traceback" not in done.said


@pytest.mark.deep
def test_broken_delta_version_exits_2_and_names_the_reason(
    submit: Submit, own_jars: dict[str, str], tmp_path: Path
) -> None:
    """The right Java, which reports another version."""
    jar = jar_of("delta-spark", own_jars)
    right = jar.rename(tmp_path / "right.jar")
    with zipfile.ZipFile(right) as read, zipfile.ZipFile(jar, "w") as written:
        for name in read.namelist():
            content = read.read(name)
            written.writestr(name, content.replace(b": 3.3.3", b": 3.3.2") if name == MANIFEST else content)

    done = submit("silver", "--table", "t", **own_jars)

    assert done.code == 2
    assert re.search(
        r"error CDC-202 Delta Lake 3\.3\.2 with Spark 3\.5\.6 or newer, .*\(Spark 3\.5\.7, .*Delta Lake 3\.3\.2, .*\): "
        r".*does not support truncate in batch mode.*; use Delta Lake 3\.3\.3",
        done.said,
    )
    assert "Traceback" not in done.said
