"""Spark 4.1 takes a table through all layers. docs/reference/compatibility.md lists other tests with it."""

import os
import subprocess
from pathlib import Path

from deltalake import DeltaTable
from submitting import CHECKOUT
from support.events import TABLE

from cdc_lake.demo.jobs import SMALL_JVM

ENVIRONMENT = CHECKOUT / ".cdc_lake" / "spark41"
JOB = Path(__file__).parent / "all_layers_of_fakes.py"
MODEL = f"""-- name: per_note
-- keys: [note]
-- sources:
--   thing: {TABLE}

SELECT coalesce(note, 'none') AS note, count(*) AS things FROM thing GROUP BY note
"""


def rows(table: Path) -> list[dict[str, object]]:
    return DeltaTable(table).to_pyarrow_table().to_pylist()


def test_spark41_runs_all_layers_and_delta_rs_reads_the_tables(tmp_path: Path) -> None:
    programs, lake = ENVIRONMENT / "bin", tmp_path / "lake"
    assert (programs / "spark-submit").is_file(), f"{ENVIRONMENT} is not there: run `make setup-spark41`"
    (tmp_path / "per_note.sql").write_text(MODEL)

    done = subprocess.run(
        [
            *(str(programs / "spark-submit"), "--conf", f"spark.driver.extraJavaOptions={SMALL_JVM}"),
            *("--master", "local[2]", str(JOB)),
        ],
        env={
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("CDC_LAKE", "PYSPARK", "SPARK"))
            },
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "CDC_LAKE__LAKE__ROOT": str(lake),
            "CDC_LAKE__GOLD__MODELS": str(tmp_path),
            "CDC_LAKE__DEFAULTS__DELETES__MODE": "hard",
            "CDC_LAKE__DEFAULTS__READ__MAX_RECORDS_PER_BATCH": "5",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    # Without a complete Java 17, this fails with the message of spark-env.sh: install one, and set JAVA_HOME to it.
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.splitlines()[-1].startswith("Spark 4.1.1, Scala 2.13")
    folder = TABLE.replace(".", "/")
    assert len(rows(lake / "bronze" / folder)) == 9
    assert {row["id"]: (row["name"], row["note"]) for row in rows(lake / "silver" / folder)} == {
        1: ("uno", "long"),
        3: ("drei", None),
        4: ("four", None),
    }
    assert sorted((row["note"], row["things"]) for row in rows(lake / "gold" / "per_note")) == [
        ("long", 1),
        ("none", 2),
    ]
