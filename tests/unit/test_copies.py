"""Copies of lakes for tests: changes of the copy do not reach the original."""

from pathlib import Path
from typing import Any

import pytest
from support.copies import copied
from support.fakes import FakeBroker

pytestmark = pytest.mark.core


class Lake:
    """A lake and a part of it that knows the folder."""

    def __init__(self, spark: Any, root: Path) -> None:
        self.spark, self.root, self.broker = spark, root, FakeBroker()
        self.part = {"folder": root, "broker": self.broker}


def test_copied_lake_has_its_own_folder_and_broker(tmp_path: Path) -> None:
    lake = Lake(object(), tmp_path / "lake")
    lake.root.mkdir()
    (lake.root / "file").write_text("first")
    lake.broker.add_partitions("topic", 1)

    other = copied(lake, tmp_path / "copy")
    (other.root / "file").write_text("second")
    other.broker.add_partitions("another", 1)

    assert other.spark is lake.spark
    assert other.root == other.part["folder"] == tmp_path / "copy"
    assert other.part["broker"] is other.broker
    assert ((lake.root / "file").read_text(), lake.broker.topics()) == ("first", ["topic"])
    assert other.broker.topics() == ["another", "topic"]
