"""`cdc-lake run bronze` with fakes: a table that lands with a warning, one that fails, and output when Python ends."""

import atexit
import sys
from collections.abc import Sequence
from functools import partial

from bronze_of_fakes import servers
from support.events import TABLE

from cdc_lake.bronze import run as bronze
from cdc_lake.cli.app import main
from cdc_lake.errors import ConfigError
from cdc_lake.sources.logs import TopicLog

FAILING = "pagila.public.failing"
WARNING, ERROR = "a file has an odd name", "the file has no end"


def says_goodbye() -> None:
    print("goodbye")
    print("goodbye", file=sys.stderr)


if __name__ == "__main__":
    broker, registry = servers()
    logs = broker.logs
    broker.add_partitions(FAILING, 1)

    def with_an_error(topics: Sequence[str]) -> dict[str, TopicLog]:
        error = ConfigError(FAILING, ERROR, "write it again")
        return {**logs(topics), FAILING: TopicLog(FAILING, "failing", {}, error)}

    broker.logs = with_an_error  # type: ignore[method-assign]
    broker.warnings = lambda topic: [WARNING] if topic == TABLE else []  # type: ignore[method-assign]
    bronze.BronzeLayer.of = partial(bronze.BronzeLayer.of, source=broker, registry=registry)
    atexit.register(says_goodbye)
    main("run", "bronze", "--table", TABLE, "--table", FAILING)
