"""A second Spark session, in a separate process, that only knows a metastore: it reads tables by name.

    python reading_by_name.py thrift://127.0.0.1:9083

Each line of its input is a query. For each, it prints a line `rows: …` with a JSON array.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

_ROWS = "rows: "


class Reader:
    """The process, for its caller."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The rows of a query."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(f"{query}\n")
        self._process.stdin.flush()
        # Hudi always prints its findings about the JVM.
        answer = next(line for line in self._process.stdout if line.startswith(_ROWS))
        rows: list[dict[str, Any]] = json.loads(answer.removeprefix(_ROWS))
        return rows

    def rows(self, table: str) -> dict[int, dict[str, Any]]:
        """A table's current rows by their column `id`."""
        self.ask(f"REFRESH TABLE {table}")
        return {row["id"]: row for row in self.ask(f"SELECT * FROM {table}")}


@contextmanager
def reading(uri: str, folder: Path) -> Iterator[Reader]:
    """The process, inside the context; its output goes to a file in `folder`."""
    with (folder / "reader.log").open("w") as log:
        command = [sys.executable, __file__, uri, str(folder)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder
        )
        with process:
            yield Reader(process)
            assert process.stdin
            process.stdin.close()


def main(uri: str, folder: str) -> None:
    """Run queries until there are no more."""
    builder = SparkSession.builder.master("local[1]").config("spark.sql.catalogImplementation", "hive")
    settings = {
        "spark.hadoop.hive.metastore.uris": uri,
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.shuffle.partitions": "1",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    for query in sys.stdin:
        rows = spark.sql(query).toJSON().collect()
        print(f"{_ROWS}[{','.join(rows)}]", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
