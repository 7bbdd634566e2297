"""`make bench-landing`: what bronze costs beside the floor, in one run; CPU seconds, and rows per CPU second.

The floor is the least that any landing does: read the records from Kafka, decode each with one schema by a bare
`from_avro`, write the bytes to Delta. Bronze also finds out each record's schema, proves that it fits to the last byte,
names the key, and places the record in the log.
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
    """Topics by name, with the schemas that share their rows evenly."""

    def texts(name: str, number: int, *, alike: bool) -> list[dict[str, Any]]:
        """Schemas of one table: differing in documentation only, or each with a column of its own."""
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
    """CPU seconds by topic and contender, of each round: in every one all topics get a share of their rows.

    With the first round come the look-ups of all schemas, and plans that the application has not seen before; in the
    last one, no topic is the first to meet anything.

    Args:
        root: an empty folder.
        addresses: the servers, see `Stack.endpoints`.
        rows: of each topic.
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
    """Run it, and print the table of docs/explanation/performance.md."""
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
