"""Entity events: nested JSON, the entity's id in the body, several partitions, no source position."""

import json
import random
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pydantic import ValidationError
from pyspark.sql import SparkSession
from support.events import START_MS, FakeRegistry, Record
from support.fakes import FakeBroker
from support.setting_groups import patched

from cdc_lake.bronze.run import run_bronze
from cdc_lake.config import Config, LakeConfig, TableConfig
from cdc_lake.operations.rebuild import run_rebuild
from cdc_lake.runs.report import TableReport
from cdc_lake.silver.run import run_silver

TOPIC = "shop.sales.orders"
ORDERS: Mapping[str, Any] = {
    "value": {
        "wire_format": "json",
        "columns": {
            "orderId": "bigint",
            "updatedAt": "timestamp",
            "status": "string",
            "customer": "struct<name:string,shipTo:struct<city:string,zip:string>>",
            "lines": "array<struct<sku:string,qty:int,unitPrice:decimal(10,2)>>",
        },
    },
    "merge": {"keys": ["orderId"], "sequence_by": "updatedAt", "apply_as_deletes": "status = 'CANCELLED'"},
}


class Shop:
    """One topic of entity events, and its tables."""

    def __init__(self, spark: SparkSession, root: Path, **settings: Any) -> None:
        self.spark, self.root, self.settings = spark, root, patched(ORDERS, settings)
        self.broker = FakeBroker()
        self.broker.add_partitions(TOPIC, 3)
        self._offsets = [0, 0, 0]

    def send(self, body: object, *, partition: int = 0, key: bytes | None = None) -> None:
        value = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        offset, self._offsets[partition] = self._offsets[partition], self._offsets[partition] + 1
        at = datetime.fromtimestamp((START_MS + sum(self._offsets)) / 1000, UTC)
        self.broker.append(Record(key, value, TOPIC, partition, offset, at))

    @property
    def config(self) -> Config:
        return Config(lake=LakeConfig(root=str(self.root)), defaults=TableConfig(**self.settings))

    def land(self) -> TableReport:
        (landed,) = run_bronze(self.config, [TOPIC], self.spark, source=self.broker, registry=FakeRegistry()).tables
        return landed

    def take(self) -> TableReport:
        landed = self.land()
        assert landed.error is None, landed.error
        (folded,) = run_silver(self.config, [TOPIC], self.spark).tables
        assert folded.error is None, folded.error
        return landed

    def read(self, layer: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = (
            DeltaTable(f"{self.root}/{layer}/{TOPIC.replace('.', '/')}").to_pyarrow_table().to_pylist()
        )
        return rows

    def rows(self) -> dict[int, dict[str, Any]]:
        """Silver, read by another reader."""
        return {row["orderId"]: row for row in self.read("silver")}


def order(number: int, second: int, status: str = "NEW", **more: Any) -> dict[str, Any]:
    return {
        "orderId": number,
        "updatedAt": f"2026-11-23T12:{second // 60:02}:{second % 60:02}.250Z",
        "status": status,
        "customer": {"name": f"customer {number}", "shipTo": {"city": "Łódź", "zip": "90-001"}},
        "lines": [{"sku": f"A{second}", "qty": 2, "unitPrice": 19.99}, {"sku": "B", "qty": 1, "unitPrice": 0.5}],
        **more,
    }


@pytest.fixture(scope="module")
def taken(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Shop, TableReport]:
    """A read-only shop, and bronze's report of it."""
    shop = Shop(spark, tmp_path_factory.mktemp("shop"))
    shop.send(order(1, 1), key=b"any \xff")
    shop.send(order(2, 2), partition=1)
    shop.send(order(1, 3, "PAID", note="gift"), partition=2)
    for lacking in (
        {name: value for name, value in order(3, 2).items() if name != "orderId"},
        order(3, 3) | {"orderId": None},
        order(4, 4) | {"updatedAt": None},
        order(5, 5) | {"orderId": "five"},
    ):
        shop.send(lacking)
    shop.send(None, key=b"1")
    shop.send(None)
    shop.send(b'{"orderId": 7')
    return shop, shop.take()


def test_documents_become_nested_columns_keyed_by_body_id(taken: tuple[Shop, TableReport]) -> None:
    shop, _ = taken

    rows = shop.rows()
    assert rows[1]["customer"] == {"name": "customer 1", "shipTo": {"city": "Łódź", "zip": "90-001"}}
    assert [(line["sku"], line["qty"], str(line["unitPrice"])) for line in rows[1]["lines"]] == [
        ("A3", 2, "19.99"),
        ("B", 1, "0.50"),
    ]
    assert {number: (row["status"], row["note"]) for number, row in rows.items()} == {
        1: ("PAID", "gift"),
        2: ("NEW", None),
    }
    assert [row["key"] for row in shop.read("bronze")].count('{"orderId":1}') == 2


def test_missing_key_or_sequence_is_quarantined_with_the_reason(taken: tuple[Shop, TableReport]) -> None:
    shop, landed = taken

    assert landed.rows["quarantined"] == 7
    reasons = {row["offset"]: row["error"]["message"] for row in shop.read("bronze") if row["status"] != "ok"}
    assert reasons[1] == reasons[2] == "`orderId`, a column of `merge.keys`, is null or missing"
    assert reasons[3] == "`updatedAt`, the column of `merge.sequence_by`, is null"
    assert reasons[4].startswith("value: ")
    assert reasons[5].startswith("the record has no value, which `merge.keys` needs")
    assert reasons[6] == "key and value are both null"
    assert reasons[7].startswith("value: ")
    assert shop.rows().keys() == {1, 2}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.deep) for seed in range(1, 6))])
def test_newest_state_wins_in_any_arrival_order(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    sent = [order(rng.randrange(6), second, rng.choice(["NEW", "PAID", "SENT", "CANCELLED"])) for second in range(30)]
    newest = {one["orderId"]: one for one in sent}
    shop = Shop(spark, tmp_path, deletes={"mode": "soft"})
    shuffled = rng.sample(sent, len(sent))
    for batch in (shuffled[:15], [*shuffled[15:], *rng.sample(sent, 8)]):  # finally, some are sent again
        for one in batch:
            shop.send(one, partition=rng.randrange(3))
        shop.take()

    found = {number: row["status"] for number, row in shop.rows().items() if not row["__deleted"]}
    assert found == {number: one["status"] for number, one in newest.items() if one["status"] != "CANCELLED"}
    (rebuilt,) = run_rebuild(shop.config, [TOPIC], spark).tables
    assert rebuilt.rows == {"same": len(shop.rows()), "changed": 0, "only_before": 0, "only_after": 0}
    lines = {number: row["lines"][0]["sku"] for number, row in shop.rows().items() if not row["__deleted"]}
    assert lines == {number: newest[number]["lines"][0]["sku"] for number in found}


def test_apply_as_deletes_removes_rows_until_a_newer_event(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(
        spark,
        tmp_path,
        deletes={"mode": "hard"},
        merge={"apply_as_deletes": "status = 'CANCELLED' AND customer.shipTo.zip LIKE '9%'"},
    )
    shop.send(order(1, 1))
    shop.send(order(2, 2, "CANCELLED", customer=None))
    shop.send(order(3, 3, "CANCELLED"))
    shop.take()
    assert shop.rows().keys() == {1, 2}
    shop.send(order(1, 5, "CANCELLED"))
    shop.send(order(1, 4, "PAID"), partition=1)  # older than the cancellation
    shop.send(order(3, 6, "NEW"), partition=2)
    shop.take()

    assert {number: row["status"] for number, row in shop.rows().items()} == {3: "NEW", 2: "CANCELLED"}


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        (
            {"merge": {"sequence_by": "status"}},
            "`merge.sequence_by` is status, a string, but must be an integer",
        ),
        pytest.param(
            {"merge": {"sequence_by": "rank"}},
            "the row does not have the column rank of `merge.sequence_by`",
            marks=pytest.mark.deep,
        ),
    ],
)
def test_unorderable_sequence_by_column_is_refused(
    spark: SparkSession, tmp_path: Path, settings: dict[str, Any], where: str
) -> None:
    shop = Shop(spark, tmp_path, **settings)
    shop.send(order(1, 1))

    assert shop.land().rows["quarantined"] == 1
    assert where in shop.read("bronze")[0]["error"]["message"]


@pytest.mark.parametrize("kind", ["long", pytest.param("date", marks=pytest.mark.deep)])
def test_sequence_by_numbers_and_dates_break_ties_by_log_order(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    def rank(number: int) -> object:
        return number if kind == "long" else f"2026-11-{number:02}"

    shop = Shop(
        spark,
        tmp_path,
        merge={"sequence_by": "rank", "keys": ["id"], "apply_as_deletes": None},
        value={"columns": {"id": "int", "rank": kind}},
    )
    for batch in ([(5, "a"), (7, "b")], [(7, "c"), (6, "d")]):
        for number, text in batch:
            shop.send({"id": 1, "rank": rank(number), "text": text})
        shop.take()

    (row,) = shop.read("silver")
    assert row["text"] == "c"


def test_apply_as_deletes_on_unknown_column_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path, merge={"apply_as_deletes": "stat = 'CANCELLED'"})
    shop.send(order(1, 1))

    with pytest.raises(
        AssertionError,
        match=r"shop.sales.orders: merge.apply_as_deletes: Spark says: .*stat.*fix it in this table's settings",
    ):
        shop.take()


def test_contradictory_settings_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"`merge\.keys` takes the key from the row; remove `key\.columns`"):
        TableConfig(merge={"keys": ("id",)}, key={"columns": ("id",)})
