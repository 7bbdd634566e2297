"""Valid and invalid values of `partition_by`."""

import pytest

from cdc_lake.config import PartitionField, StorageConfig, joint_name
from cdc_lake.errors import ConfigError
from cdc_lake.tables.partitions import check_partitions

pytestmark = pytest.mark.core

COLUMNS = {"id": "int", "paid": "timestamp", "born": "date", "tags": "array<string>", "raw": "binary", "text": "string"}


@pytest.mark.parametrize(
    ("expression", "field", "name"),
    [
        ("nationality", PartitionField("nationality"), "partition_nationality"),
        ("year(born)", PartitionField("born", "year"), "partition_born_year"),
        (" month( paid ) ", PartitionField("paid", "month"), "partition_paid_month"),
        ("bucket(16,id)", PartitionField("id", "bucket", 16), "partition_id_bucket_16"),
        ("truncate( 2, text )", PartitionField("text", "truncate", 2), "partition_text_truncate_2"),
        ("a column", PartitionField("a column"), "partition_a column"),
    ],
)
def test_expression_names_a_column_and_a_transform(expression: str, field: PartitionField, name: str) -> None:
    assert PartitionField.parse(expression) == field
    assert field.name == name


@pytest.mark.parametrize("expression", ["", "week(paid)", "bucket(0, id)", "bucket(id)", "month()", "month(paid"])
def test_unknown_expression_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match=r"invalid partition expression .*; write a column, year\(column\)"):
        StorageConfig(partition_by=(expression,))


def test_partition_levels_have_a_joint_name() -> None:
    fields = StorageConfig(partition_by=("text", "month(paid)")).partitions

    assert joint_name(fields) == "partition_text_paid_month"


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"partition_by": ("text", "text")}, "names the same field twice"),
        ({"partition_by": ("truncate(2, text)",)}, "only tables of format iceberg can be partitioned by `truncate`"),
        ({"buckets": 4}, "only tables of format hudi have `buckets` and"),
    ],
)
def test_conflicting_settings_are_refused(settings: dict[str, object], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        StorageConfig(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("held_in", "more", "what"),
    [
        (StorageConfig(partition_by=("txt",)), {}, "the column `txt` of `partition_by` does not exist"),
        (StorageConfig(partition_by=("month(text)",)), {}, "does not support month of `text` of type string"),
        (StorageConfig(partition_by=("tags",)), {}, "does not support `tags` of type array<string>"),
        (StorageConfig(partition_by=("bucket(2, raw)",)), {}, "does not support bucket of `raw` of type binary"),
        (
            StorageConfig(format="iceberg", partition_by=("truncate(2, paid)",)),
            {},
            "does not support truncate of `paid` of type timestamp",
        ),
        (
            StorageConfig(format="iceberg", partition_by=("hour(born)",)),
            {},
            "does not support hour of `born` of type date",
        ),
        (
            StorageConfig(partition_by=("text",)),
            {"partition_text": "int"},
            "its column partition_text has the name of a partition column",
        ),
        (
            StorageConfig(format="hudi", buckets=4, partition_by=("text",)),
            {},
            "partition columns must be part of the key, but `text` is not",
        ),
    ],
)
def test_unsupported_partition_columns_are_refused(held_in: StorageConfig, more: dict[str, str], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        check_partitions("a.table", held_in, COLUMNS | more, ["id"])


def test_valid_partitions_pass_even_if_only_keys_are_known() -> None:
    wanted = StorageConfig(partition_by=("text", "year(born)", "hour(paid)", "bucket(3, id)"))

    check_partitions("a.table", wanted, COLUMNS, ["id"])
    check_partitions("a.table", wanted, {"id": "int"}, ["id"])
    check_partitions("a.table", StorageConfig(), COLUMNS | {"partition_": "int", "partition_text": "int"}, ["id"])
