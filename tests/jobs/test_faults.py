"""Killed, concurrent and suspended runs: no record is lost, duplicated or numbered twice.

The faulty driver is a separate process of spark-submit, or a run in this process. A copy of the lake from the moment of
the fault is what a kill would leave of the latter. The next driver is this process.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

import psutil
import pytest
from bronze_of_fakes import MAX_ROWS, servers
from conformance.by_lake import silver_rows
from deltalake import DeltaTable
from pyspark import SparkContext
from pyspark.sql import SparkSession
from submitting import CHECKOUT, PROGRAMS, Ended
from support.events import TABLE, Topic
from support.fakes import FakeBroker

from cdc_lake import failpoints
from cdc_lake.bronze.run import run_bronze
from cdc_lake.columns import BATCH
from cdc_lake.config import TABLE_TYPES, Config, GoldConfig, LakeConfig, LeaseConfig, StorageConfig, TableConfig
from cdc_lake.demo.jobs import SMALL_JVM
from cdc_lake.gold.run import run_gold
from cdc_lake.lake.lease import Lease
from cdc_lake.operations.rebuild import run_rebuild
from cdc_lake.runs.report import TableReport
from cdc_lake.silver.run import run_silver
from cdc_lake.tables.hudi import HudiTable

FOLDER = TABLE.replace(".", "/")
BATCHES = 3
PATIENCE_SECONDS = 240
KILLED = 128 + signal.SIGKILL
DRIVERS = {
    "bronze": [Path(__file__).parent / "bronze_of_fakes.py"],
    "silver": [CHECKOUT / "jobs" / "silver.py", "--table", TABLE],
}
SUBMIT = (PROGRAMS / "spark-submit", "--conf", f"spark.driver.extraJavaOptions={SMALL_JVM}", "--master", "local[2]")
JOBS = {
    **{layer: [*SUBMIT, *job] for layer, job in DRIVERS.items()},
    "gold": [*SUBMIT, CHECKOUT / "jobs" / "gold.py", "--model", "per_id"],
    "rebuild": [PROGRAMS / "cdc-lake", "rebuild", "--table", TABLE, "--yes"],
}

Run = Callable[..., TableReport]


@pytest.fixture(scope="module")
def run(spark: SparkSession) -> Run:
    """Run a layer of a lake in this process."""

    def of(layer: str, root: Path, *, held_in: StorageConfig = TABLE_TYPES["delta"], **lease: Any) -> TableReport:
        config = Config(
            lake=LakeConfig(root=str(root), lease=LeaseConfig(**lease)),
            defaults=TableConfig(
                storage=(held_in,), deletes={"mode": "hard"}, read={"max_records_per_batch": MAX_ROWS}
            ),
        )
        if layer == "rebuild":
            return run_rebuild(config, [TABLE], spark).tables[0]
        if layer == "silver":
            return run_silver(config, [TABLE], spark).tables[0]
        broker, registry = servers()
        return run_bronze(config, [TABLE], spark, source=broker, registry=registry).tables[0]

    return of


@pytest.fixture(scope="module")
def landed(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with bronze and without silver, to copy."""
    root = tmp_path_factory.mktemp("landed") / "lake"
    assert run("bronze", root).batches == BATCHES
    return root


@pytest.fixture(scope="module")
def undisturbed(run: Run, landed: Path) -> dict[str, Any]:
    """The tables of both layers without faults."""
    root = Path(shutil.copytree(landed, landed.parent / "undisturbed"))
    assert run("silver", root).batches == BATCHES
    return {layer: content(root, layer) for layer in DRIVERS}


@pytest.fixture
def lake(layer: str, landed: Path, tmp_path: Path) -> Path:
    """The lake of a test of a layer: with bronze for silver, empty for bronze."""
    root = tmp_path / "lake"
    if layer == "silver":
        shutil.copytree(landed, root)
    return root


class Content(NamedTuple):
    """A table's rows, its side table, and the commit numbers of its history."""

    rows: list[str]
    memory: list[str]
    commits: list[int]


def content(root: Path, layer: str) -> Content:
    """A table, read by another reader."""
    table = DeltaTable(str(root / layer / FOLDER))
    metadata = [commit["userMetadata"] for commit in table.history() if "userMetadata" in commit]
    newest, *older = [json.loads(text)["cdc_lake"] for text in metadata]
    side = newest.get("side")
    memory = rows(DeltaTable(str(root / "side" / FOLDER), version=side["version"])) if side else []
    return Content(rows(table), memory, sorted(progress["commit"] for progress in (newest, *older)))


def rows(table: DeltaTable) -> list[str]:
    """The rows as texts, without the times of their commits."""
    found = table.to_pyarrow_table().drop_columns({"ingest_date", "at_ms"} & set(table.schema().to_arrow().names))
    return as_texts(found.to_pylist())


def as_texts(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return sorted(json.dumps(row, default=str, sort_keys=True) for row in rows)


class Driver:
    """A job in its own process group."""

    def __init__(self, layer: str, root: Path, failpoint: str, **variables: str) -> None:
        self._said = root.parent / "said"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("CDC_LAKE")}
        with self._said.open("w") as said:
            self._process = subprocess.Popen(
                JOBS[layer],
                env={
                    **inherited,
                    "PATH": f"{PROGRAMS}{os.pathsep}{inherited['PATH']}",
                    "CDC_LAKE__LAKE__ROOT": str(root),
                    "CDC_LAKE__DEFAULTS__DELETES__MODE": "hard",
                    "CDC_LAKE__DEFAULTS__READ__MAX_RECORDS_PER_BATCH": str(MAX_ROWS),
                    failpoints.VARIABLE: failpoint,
                    "PYSPARK_SUBMIT_ARGS": f"--conf 'spark.driver.extraJavaOptions={SMALL_JVM}' pyspark-shell",
                    **variables,
                },
                cwd=root.parent,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        """Its output so far."""
        return self._said.read_text()

    @property
    def has_ended(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def ended(self) -> int:
        """Its exit code, after it has ended."""
        return self._process.wait(PATIENCE_SECONDS)

    def stop(self) -> None:
        """Suspend it and its JVM."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Resume it."""
        os.killpg(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill it and its JVM."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)

    def __enter__(self) -> "Driver":
        return self

    def __exit__(self, *_: object) -> None:
        if not self.has_ended:
            self.kill()


@contextmanager
def stopped(layer: str, root: Path, batch: int, point: str = "", **variables: str) -> Iterator[Driver]:
    """A driver that is suspended at a failpoint; without one, after it has planned a batch."""
    point = point or f"{layer}.after_plan"
    with Driver(layer, root, f"{point}:batch={batch}:pause=5", **variables) as driver:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while f"{point} batch {batch} now" not in driver.said:
            assert time.monotonic() < deadline and not driver.has_ended, driver.said
            time.sleep(0.1)
        driver.stop()
        yield driver


@contextmanager
def reaching(failpoint: str, do: Callable[[], object]) -> Iterator[None]:
    """Call a function when a run of this process first reaches a failpoint."""
    reached = []
    with pytest.MonkeyPatch.context() as patch:

        def act(_: object) -> None:
            patch.undo()
            reached.append(do())

        patch.setenv(failpoints.VARIABLE, f"{failpoint}:raise")
        patch.setattr("cdc_lake.failpoints._Failpoint.act", act)
        yield
    assert reached, f"{failpoint} was not reached"


LEASE_SECONDS = 2
"""The lease of a killed run. The next run has to wait until it expires."""


def killed(run: Run, layer: str, root: Path, failpoint: str) -> Path:
    """The lake after a driver was killed."""
    with Driver(layer, root, f"{failpoint}:kill9") as driver:
        code = driver.ended()
    assert code == KILLED and f"kill9 at {failpoint.split(':')[0]}" in driver.said, driver.said
    return root


def copied(run: Run, layer: str, root: Path, failpoint: str) -> Path:
    """The lake as a killed run of this process would leave it."""
    left = root.parent / "left"
    with reaching(failpoint, lambda: shutil.copytree(root, left)):
        run(layer, root, seconds=LEASE_SECONDS)
    time.sleep(LEASE_SECONDS)
    return left


Kill = Callable[[Run, str, Path, str], Path]
PLACES = [
    *(f"bronze.{point}:batch={batch}" for point in ("after_plan", "after_append") for batch in (1, 2, 3)),
    "bronze.before_report",
    *(f"silver.{point}:batch={batch}" for point in ("after_plan", "after_side", "after_merge") for batch in (1, 2, 3)),
    "silver.before_report",
]
SLICE = {"silver.after_side:batch=2": killed, "bronze.after_append:batch=2": copied}
"""The tables of the quick tests; the batch is not the first, and its rows and side table must be read again."""


@pytest.mark.parametrize(
    ("layer", "failpoint", "kill"),
    [
        *(
            pytest.param(failpoint.split(".")[0], failpoint, kill, marks=[pytest.mark.core] if kill is killed else [])
            for failpoint, kill in SLICE.items()
        ),
        *(
            pytest.param(failpoint.split(".")[0], failpoint, killed, marks=pytest.mark.deep)
            for failpoint in PLACES
            if SLICE.get(failpoint) is not killed
        ),
    ],
)
def test_killed_run_is_recovered_by_the_next(
    run: Run, lake: Path, undisturbed: dict[str, Content], layer: str, failpoint: str, kill: Kill
) -> None:
    left = kill(run, layer, lake, failpoint)

    after = run(layer, left)

    assert after.error is None
    assert content(left, layer) == undisturbed[layer]
    assert content(left, layer).commits == list(range(1, BATCHES + 1))


IN_A_WRITE = {"cow": "*[0-9].inflight", "mor": "*.deltacommit.inflight"}
IN_A_COMPACTION = "*.compaction.inflight"
"""The instants on Hudi's timeline at that time."""
OFTEN = {"hoodie.compact.inline.max.delta.commits": "1"}
"""A compaction after each commit."""


def in_hudi(kind: Literal["cow", "mor"]) -> StorageConfig:
    return StorageConfig(format="hudi", type=kind, properties=OFTEN if kind == "mor" else {})


def variables_of(held_in: StorageConfig, **lease: Any) -> dict[str, str]:
    storage = {"CDC_LAKE__DEFAULTS__STORAGE": f"[{held_in.model_dump_json(exclude_none=True)}]"}
    return storage | {f"CDC_LAKE__LAKE__LEASE__{name.upper()}": str(value) for name, value in lease.items()}


def driver_on(held_in: StorageConfig, root: Path, failpoint: str = "") -> Driver:
    return Driver("silver", root, failpoint, **variables_of(held_in, seconds=LEASE_SECONDS))


def is_under_way(timeline: Path, at: str) -> bool:
    """Whether an instant of this kind was begun and is not complete."""
    begun = {one.name.split(".")[0] for one in timeline.glob(at)}
    return bool(begun - {one.name.split("_")[0] for one in timeline.glob("*_*")})


def wait_until(driver: Driver, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline and not driver.has_ended, driver.said
        time.sleep(0.01)


@contextmanager
def copying(root: Path, left: Path, is_so: Callable[[], bool]) -> Iterator[None]:
    """Copy a lake when a condition is true, while this process's JVM is suspended; this is what a kill would leave."""
    has_ended, jvm = threading.Event(), psutil.Process(SparkContext._gateway.proc.pid)

    def watch() -> None:
        while not left.exists() and not has_ended.wait(0.01):
            if is_so():
                jvm.suspend()
                try:
                    if is_so():
                        shutil.copytree(root, left)
                finally:
                    jvm.resume()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        has_ended.set()
        watcher.join()
    assert left.exists(), "it was never so"


def killed_on_hudi(run: Run, root: Path, held_in: StorageConfig, failpoint: str, is_so: Callable[[], bool]) -> Path:
    """The lake after a driver was killed at a failpoint, or, without one, when a condition was true."""
    with driver_on(held_in, root, failpoint and f"{failpoint}:batch=2:kill9") as driver:
        if not failpoint:
            wait_until(driver, is_so)
            driver.kill()
            time.sleep(LEASE_SECONDS)  # a killed process is visible until its parent has waited for it
        assert driver.ended() in (KILLED, -signal.SIGKILL), driver.said
    return root


def copied_on_hudi(run: Run, root: Path, held_in: StorageConfig, failpoint: str, is_so: Callable[[], bool]) -> Path:
    """The lake as a run of this process would leave it if it were killed when a condition was true."""
    left = root.parent / "left"
    with copying(root, left, is_so):
        run("silver", root, held_in=held_in, seconds=LEASE_SECONDS)
    time.sleep(LEASE_SECONDS)
    return left


@pytest.mark.parametrize(
    ("kind", "at", "kill"),
    [
        ("mor", IN_A_WRITE["mor"], copied_on_hudi),
        *(
            pytest.param(kind, at, killed_on_hudi, marks=pytest.mark.deep)
            for kind, at in [
                *product(("cow", "mor"), ("silver.after_plan", "silver.after_side", "silver.after_merge")),
                *IN_A_WRITE.items(),
                ("mor", IN_A_COMPACTION),
            ]
        ),
    ],
)
def test_killed_run_on_hudi_is_recovered_by_the_next(
    run: Run,
    landed: Path,
    undisturbed: dict[str, Content],
    tmp_path: Path,
    kind: Literal["cow", "mor"],
    at: str,
    kill: Callable[..., Path],
) -> None:
    root = Path(shutil.copytree(landed, tmp_path / "lake"))
    timeline, held_in = timeline_of(root), in_hudi(kind)

    def is_in_a_later_batch() -> bool:
        """The first state exists, so it is in the second one, or in its result."""
        return bool(list(timeline.glob("*_*commit"))) and is_under_way(timeline, at)

    left = kill(run, root, held_in, at if at.startswith("silver.") else "", is_in_a_later_batch)

    after = run("silver", left, held_in=held_in)

    assert after.error is None and after.batches > 0
    found = [{name: row[name] for name in row if not name.startswith("_hoodie_")} for row in silver_rows(left, TABLE)]
    assert all(row.pop("__key") for row in found)
    assert as_texts(found) == undisturbed["silver"].rows
    timeline = left / timeline.relative_to(root)
    assert not [one for one in timeline.glob("*.inflight") if is_under_way(timeline, one.name)]


@pytest.mark.parametrize(
    ("kind", "point"),
    [
        ("mor", "iceberg.after_stage"),
        *(
            pytest.param(kind, point, marks=pytest.mark.deep)
            for kind, point in [
                ("cow", "iceberg.after_stage"),
                *product(("cow", "mor"), ("silver.after_plan", "silver.after_side", "silver.after_merge")),
            ]
        ),
    ],
)
def test_killed_run_on_iceberg_is_recovered_by_the_next(
    run: Run,
    landed: Path,
    undisturbed: dict[str, Content],
    tmp_path: Path,
    kind: Literal["cow", "mor"],
    point: str,
) -> None:
    root, held_in = Path(shutil.copytree(landed, tmp_path / "lake")), StorageConfig(format="iceberg", type=kind)
    with driver_on(held_in, root, f"{point}:batch=2:kill9") as driver:
        assert driver.ended() == KILLED, driver.said

    after = run("silver", root, held_in=held_in)

    assert after.error is None and after.batches == BATCHES - (2 if point == "silver.after_merge" else 1)
    assert as_texts(silver_rows(root, TABLE)) == undisturbed["silver"].rows


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["cow", "mor"])
def test_second_driver_on_iceberg_exits_40_and_first_completes(
    run: Run, landed: Path, undisturbed: dict[str, Content], tmp_path: Path, kind: Literal["cow", "mor"]
) -> None:
    root, held_in = Path(shutil.copytree(landed, tmp_path / "lake")), StorageConfig(format="iceberg", type=kind)
    with stopped("silver", root, 2, "iceberg.after_stage", **variables_of(held_in)) as first:
        second = run("silver", root, held_in=held_in)
        first.go_on()
        code = first.ended()

    assert second.error and second.error.exit_code == 40
    assert "it is being written by run " in second.error.message
    assert code == 0, first.said
    assert as_texts(silver_rows(root, TABLE)) == undisturbed["silver"].rows


TAKEN_OVER, COMMITTED = "has taken over the table", "committed before batch 2 of this run"


@pytest.mark.deep
@pytest.mark.parametrize(
    ("kind", "point", "lease", "reason"),
    [
        ("mor", "silver.after_plan", {"seconds": LEASE_SECONDS}, TAKEN_OVER),
        ("mor", "silver.after_plan", {"enabled": False}, COMMITTED),
        *((kind, "iceberg.after_stage", {"seconds": LEASE_SECONDS}, COMMITTED) for kind in ("cow", "mor")),
    ],
)
def test_stopped_driver_on_iceberg_exits_40_after_another(
    run: Run,
    landed: Path,
    undisturbed: dict[str, Content],
    tmp_path: Path,
    kind: Literal["cow", "mor"],
    point: str,
    lease: dict[str, Any],
    reason: str,
) -> None:
    root, held_in = Path(shutil.copytree(landed, tmp_path / "lake")), StorageConfig(format="iceberg", type=kind)
    with stopped("silver", root, 2, point, **variables_of(held_in, **lease)) as first:
        time.sleep(LEASE_SECONDS)
        second = run("silver", root, held_in=held_in, **lease)
        first.go_on()
        code = first.ended()

    assert second.error is None and second.batches == BATCHES - 1
    assert code == 40 and reason in first.said, first.said
    assert as_texts(silver_rows(root, TABLE)) == undisturbed["silver"].rows


KEYS = (1, 2, 3)


def land_updates(spark: SparkSession, root: Path, batches: int) -> None:
    """Create a lake with bronze in which each batch updates all rows: merge-on-read writes logs and compacts them."""
    topic, broker = Topic({"name": ["null", "string"]}), FakeBroker()
    for number, key in product(range(batches), KEYS):
        broker.append(topic.change("u", key, {"name": str(number)}, lsn=number, ts_ms=number))
    config = Config(lake=LakeConfig(root=str(root)), defaults=TableConfig(read={"max_records_per_batch": len(KEYS)}))
    report = run_bronze(config, [TABLE], spark, source=broker, registry=topic.registry).tables[0]
    assert (report.error, report.batches) == (None, batches)


def names_by_both_readers(spark: SparkSession, root: Path) -> list[dict[int, str]]:
    """The rows that Spark and hudi-rs read, as many as there are keys."""
    table = HudiTable(spark, str(root / "silver" / FOLDER), table_type="mor")
    read = [table.read().collect(), silver_rows(root, TABLE)]
    assert [len(rows) for rows in read] == [len(KEYS)] * 2
    return [{row["id"]: row["name"] for row in rows} for rows in read]


def empty_plans(timeline: Path) -> list[str]:
    """Empty compaction plans; fast enough to see one that is being written."""
    if not timeline.is_dir():
        return []
    with os.scandir(timeline) as files:
        return [one.name for one in files if one.name.endswith(".compaction.requested") and not one.stat().st_size]


def killed_in_compaction_plan(spark: SparkSession, folder: Path, batches: int) -> Path:
    """A lake whose driver was killed while it wrote a compaction plan.

    The plan is empty for about a millisecond, which a busy machine can miss: then another lake is tried.
    """
    for attempt in range(5):
        root = folder / str(attempt) / "lake"
        land_updates(spark, root, batches)
        with driver_on(in_hudi("mor"), root) as driver:
            while not empty_plans(timeline_of(root)) and not driver.has_ended:
                pass
            if not driver.has_ended:
                driver.kill()
                time.sleep(LEASE_SECONDS)
                return root
    pytest.fail("no driver was seen while it wrote a plan")


def timeline_of(root: Path) -> Path:
    """The timeline of the lake's Hudi table."""
    return root / "silver" / FOLDER / ".hoodie" / "timeline"


@pytest.mark.deep
def test_kill_in_compaction_plan_is_recovered_by_next_run(spark: SparkSession, run: Run, tmp_path: Path) -> None:
    batches = 4
    root = killed_in_compaction_plan(spark, tmp_path, batches)
    left = empty_plans(timeline_of(root))

    after = run("silver", root, held_in=in_hudi("mor"))

    assert after.error is None
    assert after.warnings == [f"removed {plan}: a killed run had not finished writing it" for plan in left]
    assert names_by_both_readers(spark, root) == [dict.fromkeys(KEYS, str(batches - 1))] * 2
    assert list(timeline_of(root).glob("*.compaction.requested"))


@pytest.mark.deep
def test_silver_is_correct_after_ten_kills_during_writes(spark: SparkSession, run: Run, tmp_path: Path) -> None:
    root, batches, chance = tmp_path / "lake", 30, random.Random(37)
    timeline = timeline_of(root)
    land_updates(spark, root, batches)
    kills = 0
    while kills < 10:
        before = len(list(timeline.glob("*")))
        with driver_on(in_hudi("mor"), root) as driver:
            wait_until(driver, lambda before=before: len(list(timeline.glob("*"))) > before)
            time.sleep(chance.uniform(0, 1.5))
            assert not driver.has_ended, driver.said
            driver.kill()
            kills += 1
            time.sleep(LEASE_SECONDS)

    after = run("silver", root, held_in=in_hudi("mor"))

    assert after.error is None and after.batches > 0
    assert names_by_both_readers(spark, root) == [dict.fromkeys(KEYS, str(batches - 1))] * 2
    assert list(timeline.glob("*.compaction.requested"))


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["cow", "mor"])
def test_reader_during_a_hudi_run_sees_only_complete_versions(
    landed: Path, tmp_path: Path, spark: SparkSession, kind: Literal["cow", "mor"]
) -> None:
    root = Path(shutil.copytree(landed, tmp_path / "lake"))

    def state(rows: Iterable[Mapping[str, Any]]) -> frozenset[tuple[Any, ...]]:
        return frozenset((row["id"], row["__batch"], row["__kafka"]["offset"]) for row in rows)

    seen = set()
    with driver_on(in_hudi(kind), root) as driver:
        while not driver.has_ended:
            try:
                seen.add(state(silver_rows(root, TABLE)))
            except Exception as problem:
                # The table may not exist yet, and in a local folder Hudi writes the content of a commit in place.
                assert not any(seen) or "Commit metadata error" in str(problem)
        assert driver.ended() == 0, driver.said

    table = HudiTable(spark, str(root / "silver" / FOLDER), table_type=kind)
    timeline = Path(table.path, ".hoodie", "timeline")
    versions = sorted({int(one.name.split("_")[0]) for one in timeline.glob("*_*commit")})
    whole = {state(row.asDict(recursive=True) for row in table.read(version).collect()) for version in versions}
    assert len(whole) == BATCHES
    assert state(silver_rows(root, TABLE)) in seen
    assert seen - {frozenset()} <= whole


@pytest.mark.deep
@pytest.mark.parametrize("point", ["gold.after_plan:batch=1", "gold.after_overwrite:batch=1", "gold.before_report"])
def test_killed_gold_run_is_recovered_by_the_next(
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


IN_THE_OVERWRITE = "its first file is there"


@pytest.mark.deep
@pytest.mark.parametrize(
    ("at", "is_done"),
    [
        ("rebuild.after_compare", False),
        ("rebuild.after_side", False),
        (IN_THE_OVERWRITE, False),
        ("rebuild.after_overwrite", True),
        ("rebuild.before_report", True),
    ],
)
def test_killed_rebuild_leaves_a_complete_table_and_reruns(
    run: Run, landed: Path, undisturbed: dict[str, Content], tmp_path: Path, at: str, is_done: bool
) -> None:
    root = Path(shutil.copytree(landed, tmp_path / "lake"))
    assert run("silver", root).batches == BATCHES
    folder = root / "silver" / FOLDER
    DeltaTable(str(folder)).update(predicate="id = 1", new_values={"name": "'wrong'"})
    wrong, right = rows(DeltaTable(str(folder))), without_batches(undisturbed["silver"].rows)
    files = set(folder.glob("*.parquet"))
    failpoint = "" if at == IN_THE_OVERWRITE else f"{at}:kill9"
    with Driver("rebuild", root, failpoint, CDC_LAKE__LAKE__LEASE__SECONDS=str(LEASE_SECONDS)) as driver:
        if not failpoint:
            wait_until(driver, lambda: set(folder.glob("*.parquet")) > files)
            driver.kill()
            time.sleep(LEASE_SECONDS)
        assert driver.ended() in (KILLED, -signal.SIGKILL), driver.said

    assert without_batches(rows(DeltaTable(str(folder)))) == (right if is_done else without_batches(wrong)) != []
    again = run("rebuild", root)

    assert (again.error, again.rows["changed"]) == (None, 0 if is_done else 1)
    after = content(root, "silver")
    assert (without_batches(after.rows), without_batches(after.memory)) == (
        right,
        without_batches(undisturbed["silver"].memory),
    )
    assert run("silver", root).status == "unchanged"


def without_batches(rows: list[str]) -> list[dict[str, Any]]:
    """Rows or entries without the number of the commit that wrote them."""
    return [{name: value for name, value in json.loads(row).items() if name != BATCH} for row in rows]


@pytest.mark.deep
@pytest.mark.parametrize("layer", DRIVERS)
def test_second_driver_exits_40_and_first_completes(
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


Meet = Callable[..., tuple[Ended, TableReport]]


@pytest.fixture(params=["one process", pytest.param("two processes", marks=pytest.mark.deep)])
def meet(request: pytest.FixtureRequest, run: Run, monkeypatch: pytest.MonkeyPatch) -> Meet:
    """A driver suspended after it has planned a batch, and another one that starts then; the results of both."""

    def two_processes(layer: str, root: Path, batch: int, then: Run, **lease: Any) -> tuple[Ended, TableReport]:
        variables = {f"CDC_LAKE__LAKE__LEASE__{name.upper()}": str(value) for name, value in lease.items()}
        with stopped(layer, root, batch, **variables) as first:
            second = then()
            first.go_on()
            return Ended(first.ended(), "", first.said), second

    def one_process(layer: str, root: Path, batch: int, then: Run, **lease: Any) -> tuple[Ended, TableReport]:
        monkeypatch.setattr(Lease, "_renew", lambda lease: None)  # a suspended process does not renew its lease
        seconds: list[TableReport] = []
        with reaching(f"{layer}.after_plan:batch={batch}", lambda: seconds.append(then())):
            first = run(layer, root, **lease).error
        return Ended(first.exit_code if first else 0, "", first.message if first else ""), seconds[0]

    return one_process if request.param == "one process" else two_processes


@pytest.mark.parametrize(
    ("layer", "batch"),
    [
        ("silver", 2),
        *(pytest.param(*at, marks=pytest.mark.deep) for at in (("silver", 1), ("bronze", 1), ("bronze", 2))),
    ],
)
def test_without_leases_one_driver_commits_and_other_exits_40(
    run: Run, meet: Meet, lake: Path, undisturbed: dict[str, Content], layer: str, batch: int
) -> None:
    first, second = meet(layer, lake, batch, lambda: run(layer, lake, enabled=False), enabled=False)

    assert second.error is None and second.batches == BATCHES - batch + 1
    assert first.code == 40 and f"committed before batch {batch} of this run" in first.said, first.said
    assert content(lake, layer) == undisturbed[layer]


@pytest.mark.parametrize("layer", ["bronze", pytest.param("silver", marks=pytest.mark.deep)])
def test_driver_past_its_lease_exits_40_after_a_takeover(
    run: Run, meet: Meet, lake: Path, undisturbed: dict[str, Content], layer: str
) -> None:
    def follow() -> TableReport:
        time.sleep(LEASE_SECONDS)
        return run(layer, lake)

    first, second = meet(layer, lake, 2, follow, seconds=LEASE_SECONDS)

    assert second.error is None and second.batches == BATCHES - 1
    assert first.code == 40 and "has taken over the table" in first.said, first.said
    assert content(lake, layer) == undisturbed[layer]


APPEND = {"CDC_LAKE__DEFAULTS__MERGE__MODE": "append", "CDC_LAKE__DEFAULTS__DELETES__MODE": "soft"}


@pytest.fixture
def appended(landed: Path, tmp_path: Path) -> Path:
    """A lake with bronze, whose silver will have one row per event."""
    return Path(shutil.copytree(landed, tmp_path / "lake"))


def append(root: Path, spark: SparkSession, **lease: Any) -> TableReport:
    config = Config(
        lake=LakeConfig(root=str(root), lease=LeaseConfig(**lease)),
        defaults=TableConfig(merge={"mode": "append"}, read={"max_records_per_batch": MAX_ROWS}),
    )
    return run_silver(config, [TABLE], spark).tables[0]


def appended_offsets(root: Path) -> list[int]:
    rows = DeltaTable(str(root / "silver" / FOLDER)).to_pyarrow_table(columns=["meta"]).to_pylist()
    return sorted(row["meta"]["kafka"]["offset"] for row in rows)


@pytest.mark.deep
@pytest.mark.parametrize("point", ["after_plan", "after_side", "after_merge"])
def test_append_after_a_killed_run_writes_each_record_once(spark: SparkSession, appended: Path, point: str) -> None:
    with Driver("silver", appended, f"silver.{point}:batch=2:kill9", **APPEND) as driver:
        assert driver.ended() == KILLED, driver.said

    assert append(appended, spark).error is None
    assert appended_offsets(appended) == list(range(MAX_ROWS * BATCHES))


@pytest.mark.deep
def test_append_by_two_drivers_writes_each_record_once(spark: SparkSession, appended: Path) -> None:
    with stopped("silver", appended, 2, CDC_LAKE__LAKE__LEASE__ENABLED="false", **APPEND) as first:
        second = append(appended, spark, enabled=False)
        first.go_on()
        code = first.ended()

    assert second.error is None and second.batches == BATCHES - 1
    assert code == 40 and "committed before batch 2 of this run" in first.said, first.said
    assert appended_offsets(appended) == list(range(MAX_ROWS * BATCHES))
