"""What `partition_by` may say."""

import pytest

from cdc_lake.config import StorageConfig
from cdc_lake.errors import ConfigError
from cdc_lake.partitioning import PartitionField, joint_name
from cdc_lake.tables.partitions import check_partitions

COLUMNS = {"id": "int", "paid": "timestamp", "born": "date", "tags": "array<string>", "raw": "binary", "text": "string"}


@pytest.mark.parametrize(
    ("expression", "field", "name"),
    [
        ("nationality", PartitionField("nationality"), "partition_nationality"),
        ("year(born)", PartitionField("born", "year"), "partition_born_year"),
        (" month( paid ) ", PartitionField("paid", "month"), "partition_paid_month"),
        ("bucket(16,id)", PartitionField("id", "bucket", 16), "partition_id_bucket_16"),
        ("a column", PartitionField("a column"), "partition_a column"),
    ],
)
def test_an_expression_names_a_column_and_a_part_of_it(expression: str, field: PartitionField, name: str) -> None:
    assert PartitionField.parse(expression) == field
    assert field.name == name


@pytest.mark.parametrize("expression", ["", "week(paid)", "bucket(0, id)", "bucket(id)", "month()", "month(paid"])
def test_another_expression_is_refused_in_words(expression: str) -> None:
    with pytest.raises(ValueError, match=r"invalid partition expression .*; write a column, year\(column\)"):
        StorageConfig(partition_by=(expression,))


def test_several_levels_have_a_name_together() -> None:
    fields = StorageConfig(partition_by=("text", "month(paid)")).partitions

    assert joint_name(fields) == "partition_text_paid_month"


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"partition_by": ("text", "text")}, "names the same field twice"),
        ({"buckets": 4}, "only tables of format hudi have `buckets` and"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, object], what: str) -> None:
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
def test_a_table_that_cannot_be_partitioned_so_is_refused(
    held_in: StorageConfig, more: dict[str, str], what: str
) -> None:
    with pytest.raises(ConfigError, match=what):
        check_partitions("a.table", held_in, COLUMNS | more, ["id"])


def test_what_can_be_is_taken_and_so_is_a_table_of_which_only_the_keys_are_known() -> None:
    wanted = StorageConfig(partition_by=("text", "year(born)", "hour(paid)", "bucket(3, id)"))

    check_partitions("a.table", wanted, COLUMNS, ["id"])
    check_partitions("a.table", wanted, {"id": "int"}, ["id"])
    check_partitions("a.table", StorageConfig(), COLUMNS | {"partition_": "int", "partition_text": "int"}, ["id"])
