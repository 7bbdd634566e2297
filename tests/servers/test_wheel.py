"""The wheel, installed into an empty environment: from `cdc-lake init` to the report, without this clone."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from deltalake import DeltaTable
from psycopg import sql
from psycopg.conninfo import make_conninfo
from support import CHECKOUT

from cdc_lake.demo import sample
from cdc_lake.demo.servers.stack import Stack

DATABASE = "elsewhere"
TABLE = f"{DATABASE}.public.orders"

Program = Callable[..., str]


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    """The output of a command that does not see this test's environment."""
    kept = {name: os.environ[name] for name in ("HOME", "CDC_LAKE_JARS", "LANG") if name in os.environ}
    ended = subprocess.run(
        command, cwd=cwd, env={**kept, "PATH": os.defpath, **variables}, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, f"{command} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}"
    return ended.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python environment with the wheel and two of its extras, in the versions of the lock."""
    folder = tmp_path_factory.mktemp("wheel")
    build = ("uv", "build", "--no-config", "--quiet", "--wheel", "--no-build-isolation", "--out-dir", str(folder))
    subprocess.run([*build, str(CHECKOUT)], check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run(["uv", "venv", "--no-config", "--quiet", "--python", sys.executable, folder / "env"], check=True)
    install = ("uv", "pip", "install", "--no-config", "--quiet", "--python", str(folder / "env"))
    lock = CHECKOUT / "requirements" / "local.txt"
    subprocess.run([*install, "--constraint", str(lock), f"{wheel}[demo,report]"], check=True)
    return folder / "env" / "bin"


@pytest.fixture
def project(stack: Stack, tmp_path: Path) -> Iterator[Path]:
    """An empty folder, and a table of a database without connector."""
    with psycopg.connect(stack.endpoints["postgres"], autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))
    with psycopg.connect(make_conninfo(stack.endpoints["postgres"], dbname=DATABASE), autocommit=True) as source:
        source.execute("CREATE TABLE orders (id int PRIMARY KEY, amount numeric(10, 2))")
        source.execute("INSERT INTO orders VALUES (1, 19.90), (2, 5.00)")
    yield tmp_path


def test_installed_wheel_replicates_a_table(environment: Path, stack: Stack, project: Path) -> None:
    def cdc_lake(*arguments: str) -> str:
        return run(environment / "cdc-lake", *arguments, cwd=project)

    source = make_conninfo(stack.endpoints["postgres"], dbname=DATABASE)
    cdc_lake("jars", "fetch")
    cdc_lake(*("stack", "connect", "--folder", str(stack.folder), "--database", DATABASE, "--table", "public.orders"))
    sample.wait_until_sent(source, DATABASE, 60)
    addresses = ("--brokers", stack.endpoints["kafka"], "--registry", stack.endpoints["registry"])
    assert f"selects {TABLE}\n" in cdc_lake("init", *addresses, "--table", f"{DATABASE}.public.*")
    # The connectors of other tests may be broken.
    assert "fail " not in cdc_lake("doctor", "--table", f"{DATABASE}.*", "--connect", stack.endpoints["connect"])
    assert "creates the table, 2 records" in cdc_lake("plan", "--table", TABLE)

    jobs = Path(cdc_lake("jobs", "path").strip())
    assert not jobs.is_relative_to(CHECKOUT)
    submit = (environment / "spark-submit", "--master", "local[2]", "--conf", "spark.ui.enabled=false")
    path = f"{environment}{os.pathsep}{os.defpath}"
    run(*submit, jobs / "bronze.py", "--table", TABLE, cwd=project, PATH=path)
    cdc_lake("run", "silver", "gold", "--table", TABLE)

    silver = DeltaTable(project / "lake/silver" / TABLE.replace(".", "/")).to_pyarrow_table()
    assert sorted(map(str, silver["amount"].to_pylist())) == ["19.90", "5.00"]
    gold = DeltaTable(project / "lake/gold/row_count").to_pyarrow_table()
    assert gold.to_pylist()[0]["rows"] == 2
    assert "0 failed, 0 records behind" in cdc_lake("status", "--max-lag", "5m")
    cdc_lake("report", "--output", "page.html")
    assert TABLE in (project / "page.html").read_text(encoding="utf-8")


def test_installed_wheel_runs_the_recorded_demo(environment: Path, tmp_path: Path) -> None:
    printed = run(environment / "cdc-lake", "demo", "--recorded", cwd=tmp_path)

    assert "Silver and gold equal the recorded source." in printed
    assert (tmp_path / ".cdc_lake/recorded/recorded-demo.yml").is_file()


def test_wheel_has_no_file_of_conf_that_may_be_a_secret(environment: Path) -> None:
    (package,) = environment.parent.glob("lib/python*/site-packages/cdc_lake")
    names = {path.name for path in (package / "conf").iterdir()} | {
        path.suffix for path in (package / "conf/gold").iterdir()
    }

    assert names == {"cdc-lake.yml", "gold", "jars", ".sql", ".csv"}
