"""Runs that are killed, that meet, or that stop past their time: nothing is lost, doubled or numbered twice.

The driver that the fault happens to is a process of its own, by spark-submit. The one that comes after it is this one.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from bronze_of_fakes import MAX_ROWS, servers
from deltalake import DeltaTable
from events import TABLE
from pyspark.sql import SparkSession
from submitting import CHECKOUT, PROGRAMS, SMALL_JVM

from cdc_lake.config import Config, GoldConfig, LakeConfig, LeaseConfig, TableConfig
from cdc_lake.layers.bronze import run_bronze
from cdc_lake.layers.gold import run_gold
from cdc_lake.layers.silver import run_silver
from cdc_lake.metrics.report import TableReport

FOLDER = TABLE.replace(".", "/")
BATCHES = 3
PATIENCE_SECONDS = 240
KILLED = 128 + signal.SIGKILL
DRIVERS = {
    "bronze": [Path(__file__).parent / "bronze_of_fakes.py"],
    "silver": [CHECKOUT / "jobs" / "silver.py", "--table", TABLE],
}
JOBS = DRIVERS | {"gold": [CHECKOUT / "jobs" / "gold.py", "--model", "per_id"]}

Run = Callable[..., TableReport]


@pytest.fixture(scope="module")
def run(spark: SparkSession) -> Run:
    """Run a layer of a lake in this process."""

    def of(layer: str, root: Path, **lease: Any) -> TableReport:
        config = Config(
            lake=LakeConfig(root=str(root)),
            lease=LeaseConfig(**lease),
            defaults=TableConfig(deletes="hard", max_rows=MAX_ROWS),
        )
        if layer == "silver":
            return run_silver(config, [TABLE], spark).tables[0]
        broker, registry = servers()
        return run_bronze(config, [TABLE], spark, broker=broker, registry=registry).tables[0]

    return of


@pytest.fixture(scope="module")
def landed(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with bronze and no silver; to be copied."""
    root = tmp_path_factory.mktemp("landed") / "lake"
    assert run("bronze", root).batches == BATCHES
    return root


@pytest.fixture(scope="module")
def undisturbed(run: Run, landed: Path) -> dict[str, Any]:
    """What both layers hold when nothing happens to their runs."""
    root = Path(shutil.copytree(landed, landed.parent / "undisturbed"))
    assert run("silver", root).batches == BATCHES
    return {layer: content(root, layer) for layer in DRIVERS}


@pytest.fixture
def lake(layer: str, landed: Path, tmp_path: Path) -> Path:
    """The lake of a test of a layer: for silver with bronze in it, for bronze empty."""
    root = tmp_path / "lake"
    if layer == "silver":
        shutil.copytree(landed, root)
    return root


class Content(NamedTuple):
    """A table's rows, what it remembers beside them, and the commit numbers of its history."""

    rows: list[str]
    memory: list[str]
    commits: list[int]


def content(root: Path, layer: str) -> Content:
    """A table as another reader sees it."""
    table = DeltaTable(str(root / layer / FOLDER))
    metadata = [commit["userMetadata"] for commit in table.history() if "userMetadata" in commit]
    newest, *older = [json.loads(text)["cdc_lake"] for text in metadata]
    side = newest["side"]
    memory = rows(DeltaTable(str(root / "side" / FOLDER), version=side["version"])) if side else []
    return Content(rows(table), memory, sorted(progress["commit"] for progress in (newest, *older)))


def rows(table: DeltaTable) -> list[str]:
    """The rows as text, without when they were written."""
    found = table.to_pyarrow_table().drop_columns({"ingest_date", "at_ms"} & set(table.schema().to_arrow().names))
    return sorted(json.dumps(row, default=str, sort_keys=True) for row in found.to_pylist())


class Driver:
    """A job in a process group of its own."""

    def __init__(self, layer: str, root: Path, failpoint: str, **variables: str) -> None:
        self._said = root.parent / "said"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("CDC_LAKE")}
        with self._said.open("w") as said:
            self._process = subprocess.Popen(
                [
                    *(PROGRAMS / "spark-submit", "--conf", f"spark.driver.extraJavaOptions={SMALL_JVM}"),
                    *("--master", "local[2]", *JOBS[layer]),
                ],
                env={
                    **inherited,
                    "PATH": f"{PROGRAMS}{os.pathsep}{inherited['PATH']}",
                    "CDC_LAKE__LAKE__ROOT": str(root),
                    "CDC_LAKE__DEFAULTS__DELETES": "hard",
                    "CDC_LAKE__DEFAULTS__MAX_ROWS": str(MAX_ROWS),
                    "CDC_LAKE_FAILPOINT": failpoint,
                    **variables,
                },
                cwd=root.parent,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        """What it said until now."""
        return self._said.read_text()

    @property
    def has_ended(self) -> bool:
        """Whether it is no more."""
        return self._process.poll() is not None

    def ended(self) -> int:
        """Its exit code, once it has ended."""
        return self._process.wait(PATIENCE_SECONDS)

    def stop(self) -> None:
        """Stop it where it is, its JVM too."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on."""
        os.killpg(self._process.pid, signal.SIGCONT)

    def __enter__(self) -> "Driver":
        return self

    def __exit__(self, *_: object) -> None:
        if not self.has_ended:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)


@contextmanager
def stopped(layer: str, root: Path, batch: int, **variables: str) -> Iterator[Driver]:
    """A driver that has planned a batch, and is stopped there."""
    with Driver(layer, root, f"{layer}.after_plan:batch={batch}:pause=5", **variables) as driver:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while f"after_plan batch {batch} now" not in driver.said:
            assert time.monotonic() < deadline and not driver.has_ended, driver.said
            time.sleep(0.1)
        driver.stop()
        yield driver


SLICE = {("silver.after_side", 2), ("bronze.after_append", 2)}
"""What the quick tests kill; a batch that is not the first, with rows and memory to be gone through again."""
PLACES = [
    *((f"bronze.{point}", batch) for point in ("after_plan", "after_append") for batch in (1, 2, 3)),
    ("bronze.before_report", None),
    *((f"silver.{point}", batch) for point in ("after_plan", "after_side", "after_merge") for batch in (1, 2, 3)),
    ("silver.before_report", None),
]


@pytest.mark.parametrize(
    ("layer", "point", "batch"),
    [
        pytest.param(point.split(".")[0], point, batch, marks=[] if (point, batch) in SLICE else pytest.mark.deep)
        for point, batch in PLACES
    ],
)
def test_a_killed_run_is_made_good_by_the_next(
    run: Run, lake: Path, undisturbed: dict[str, Content], layer: str, point: str, batch: int | None
) -> None:
    with Driver(layer, lake, f"{point}:kill9" if batch is None else f"{point}:batch={batch}:kill9") as driver:
        code = driver.ended()
    assert code == KILLED and f"kill9 at {point}" in driver.said, driver.said

    after = run(layer, lake)

    assert after.error is None
    assert content(lake, layer) == undisturbed[layer]
    assert content(lake, layer).commits == list(range(1, BATCHES + 1))


@pytest.mark.deep
@pytest.mark.parametrize("point", ["gold.after_plan:batch=1", "gold.after_overwrite:batch=1", "gold.before_report"])
def test_a_killed_gold_run_is_made_good_by_the_next(
    spark: SparkSession, run: Run, landed: Path, tmp_path: Path, point: str
) -> None:
    root = Path(shutil.copytree(landed, tmp_path / "lake"))
    assert run("silver", root).batches == BATCHES
    (tmp_path / "per_id.sql").write_text(
        f"-- name: per_id\n-- keys: [id]\n-- sources: {{rows: {TABLE}}}\n"
        "SELECT id, count(*) AS n FROM rows GROUP BY id\n"
    )
    with Driver("gold", root, f"{point}:kill9", CDC_LAKE__GOLD__MODELS=str(tmp_path)) as driver:
        code = driver.ended()
    assert code == KILLED and "kill9 at gold." in driver.said, driver.said

    config = Config(lake=LakeConfig(root=str(root)), gold=GoldConfig(models=str(tmp_path)))
    (after,) = run_gold(config, ["per_id"], spark).tables

    assert after.error is None
    gold = DeltaTable(str(root / "gold" / "per_id"))
    silver = DeltaTable(str(root / "silver" / FOLDER)).to_pyarrow_table(columns=["id"])
    assert sorted(gold.to_pyarrow_table()["id"].to_pylist()) == sorted(silver["id"].to_pylist()) != []
    metadata = [commit["userMetadata"] for commit in gold.history() if "userMetadata" in commit]
    assert [json.loads(text)["cdc_lake"]["commit"] for text in metadata] == [1]


@pytest.mark.deep
@pytest.mark.parametrize("layer", DRIVERS)
def test_a_second_driver_ends_with_40_at_once_and_the_first_is_not_disturbed(
    run: Run, lake: Path, undisturbed: dict[str, Content], layer: str
) -> None:
    with stopped(layer, lake, batch=1) as first:
        second = run(layer, lake)
        first.go_on()
        code = first.ended()

    assert second.error and second.error.exit_code == 40
    assert "it is being written by run " in second.error.message
    assert code == 0, first.said
    assert content(lake, layer) == undisturbed[layer]


@pytest.mark.parametrize(
    ("layer", "batch"),
    [
        ("silver", 2),
        *(pytest.param(*at, marks=pytest.mark.deep) for at in (("silver", 1), ("bronze", 1), ("bronze", 2))),
    ],
)
def test_without_leases_one_of_two_drivers_commits_and_the_other_ends_with_40(
    run: Run, lake: Path, undisturbed: dict[str, Content], layer: str, batch: int
) -> None:
    with stopped(layer, lake, batch, CDC_LAKE__LEASE__ENABLED="false") as first:
        second = run(layer, lake, enabled=False)
        first.go_on()
        code = first.ended()

    assert second.error is None and second.batches == BATCHES - batch + 1
    assert code == 40 and f"committed while batch {batch} was being made" in first.said, first.said
    assert content(lake, layer) == undisturbed[layer]


@pytest.mark.parametrize("layer", ["bronze", pytest.param("silver", marks=pytest.mark.deep)])
def test_a_driver_stopped_past_its_lease_is_followed_and_ends_with_40(
    run: Run, lake: Path, undisturbed: dict[str, Content], layer: str
) -> None:
    with stopped(layer, lake, batch=2, CDC_LAKE__LEASE__SECONDS="2") as first:
        time.sleep(2)
        second = run(layer, lake)
        first.go_on()
        code = first.ended()

    assert second.error is None and second.batches == BATCHES - 1
    assert code == 40 and "has taken the table over" in first.said, first.said
    assert content(lake, layer) == undisturbed[layer]
