"""`make bench-landing`: compare bronze with a minimal landing job (`floor`) in one run.

The minimal job reads the records from Kafka, decodes each with one schema by `from_avro`, and writes the bytes to
Delta. Bronze also resolves each record's schema, checks that it matches all bytes, and adds the key and log position.
"""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.log import Log, value_schema
from benchmarks.quick import Contender, environments, servers

FLOOR, BRONZE = "floor", "bronze"
_ROUNDS = 3


def topics() -> dict[str, list[dict[str, Any]]]:
    """Topic -> schemas, each of which gets an equal share of the topic's rows."""

    def texts(name: str, number: int, *, alike: bool) -> list[dict[str, Any]]:
        """Schemas of one table, which differ in their documentation only (`alike`) or in one column."""
        found = []
        for version in range(number):
            schema = value_schema(name, 0)
            if alike:
                schema["doc"] = f"version {version}"
            elif version:
                schema["fields"].insert(5, {"name": f"extra_{version}", "type": ["null", "string"], "default": None})
            found.append(schema)
        return found

    wanted = {"one": (1, True), "three": (3, False), "twenty_texts": (20, True), "twenty_layouts": (20, False)}
    return {
        f"bench.public.{name}": texts(f"bench.public.{name}", number, alike=alike)
        for name, (number, alike) in wanted.items()
    }


def measure(root: Path, addresses: dict[str, str], rows: int) -> dict[str, dict[str, list[float]]]:
    """CPU seconds of each round, by topic and pipeline. Each round sends an equal share of every topic's rows.

    The first round includes lookups of all schemas and the compilation of new plans; the last one does not.

    Args:
        root: an empty folder.
        addresses: the servers' addresses; see `Stack.endpoints`.
        rows: number of rows per topic.
    """
    log = Log(addresses["kafka"], addresses["registry"])
    wanted = topics()
    log.create(dict.fromkeys(wanted, 4))
    ours, theirs = environments(root, addresses)
    seconds: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        contenders = [
            stack.enter_context(Contender(name, root, environment))
            for name, environment in ((BRONZE, ours), (FLOOR, theirs))
        ]
        for contender in contenders:
            contender.wait()
        for _, (name, schemas) in product(range(_ROUNDS), wanted.items()):
            for schema in schemas:
                log.use(name, schema)
                log.snapshot(name, rows // _ROUNDS // len(schemas))
            for contender in contenders:
                cost = contender.take([name])
                seconds.setdefault(name, {}).setdefault(contender.name, []).append(cost.cpu)
                print(f"{name}: {contender.name} {cost.cpu:.1f} CPU s, {cost.wall:.1f} s", flush=True)
    return seconds


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark and print the table of docs/explanation/performance.md."""
    rows = int(arguments[0]) if arguments else 450_000
    with servers() as (folder, addresses):
        seconds = measure(folder, addresses, rows)
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in (
        "records with",
        "round",
        "bronze, CPU s",
        "floor, CPU s",
        "bronze's rate / floor's",
        "times one schema",
    ):
        table.add_column(name, justify="left" if name in ("records with", "round") else "right")
    one = seconds["bench.public.one"][BRONZE]
    for name, by in seconds.items():
        for number, (ours, theirs, of_one) in enumerate(zip(by[BRONZE], by[FLOOR], one, strict=True), 1):
            figures = (ours, theirs, theirs / ours, ours / of_one)
            title = name.rpartition(".")[2].replace("_", " ") if number == 1 else ""
            table.add_row(title, str(number), *(f"{value:.2f}" for value in figures))
    Console(width=100).print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
