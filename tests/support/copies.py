"""Lakes that are made once, and copied for each test: a Delta or Hudi table is a folder."""

import shutil
from copy import deepcopy
from pathlib import Path
from typing import Protocol, TypeVar

from pyspark.sql import SparkSession


class HasFolder(Protocol):
    """A lake in a folder, with fakes of the servers.

    Attributes:
        root: its folder. The lake refers to the folder only by this object.
    """

    spark: SparkSession
    root: Path


L = TypeVar("L", bound=HasFolder)


def copied(lake: L, root: Path) -> L:
    """A second lake in the same state: a copy of the folder, and of everything else that the lake has.

    Args:
        lake: the lake, which does not change.
        root: the folder of the copy, which does not exist yet.
    """
    return deepcopy(lake, {id(lake.spark): lake.spark, id(lake.root): shutil.copytree(lake.root, root)})
