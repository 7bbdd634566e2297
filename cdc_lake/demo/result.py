"""The demo's steps and its result: counts and differences per table and model, and the time that each step took."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field


@dataclass
class Step:
    """A step of the demo.

    Attributes:
        text: what it does; at its end, what it did.
        seconds: how long it took, once it has ended.
    """

    name: str
    text: str
    seconds: float = 0.0


Show = Callable[[Step], AbstractContextManager[object]]
"""Shows a step while the context is open, and its outcome afterwards."""


@contextmanager
def run_step(show: Show, parts: dict[str, float], name: str, text: str, *, part: str | None = None) -> Iterator[Step]:
    """Show a step, and add the time that the body takes to `parts`, as `part` if the name is not unique."""
    step, started = Step(name, text), time.monotonic()
    with show(step):
        yield step
        step.seconds = round(time.monotonic() - started, 1)
    parts[part or name] = step.seconds


@dataclass(frozen=True)
class TableResult:
    """The result of one table.

    Attributes:
        events: records in the topic.
        differences: differing rows or cells of silver, records that bronze lacks or has twice, and those that it
            quarantined although they decode, or did not quarantine although they do not.
        losses: known kind of loss before Kafka -> number of cells that differ because of it. They are not differences.
        seconds: time that the bronze and silver jobs spent on the table.
    """

    topic: str
    events: int
    bronze_rows: int
    quarantined: int
    silver_rows: int
    source_rows: int
    differences: int
    losses: dict[str, int]
    seconds: float


@dataclass(frozen=True)
class GoldResult:
    """The result of one gold model.

    Attributes:
        rows: rows of the model's table.
        source_rows: rows that the query of the source returns.
        differences: rows that only one of them has.
        seconds: time that the gold jobs spent on the model.
    """

    model: str
    rows: int
    source_rows: int
    differences: int
    seconds: float


@dataclass
class DemoResult:
    """The result of the demo.

    Attributes:
        source: name of the database, and prefix of the topics.
        left_out: table that was not replicated -> the reason.
        skipped: error of a statement of the dump that failed -> how often it occurred.
        differences: the differences of all tables and models.
        samples: the first differences of each table, one text each.
        transactions: transactions that the workload committed.
        example: the key of a film with several updates, one of which arrived twice; only of the small sample.
        stream: counts of difficult events by the names of `StreamStats`.
        too_few: the counts below their minimum; with any, the demo fails.
        parts: name of a step -> its seconds, in the order in which they ran.
        seconds: time of the whole demo.
        peak_rss_bytes: peak memory of the demo, its servers and jobs.
    """

    source: str = ""
    left_out: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    tables: list[TableResult] = field(default_factory=list)
    gold: list[GoldResult] = field(default_factory=list)
    differences: int = 0
    samples: list[str] = field(default_factory=list)
    transactions: int = 0
    example: str = ""
    stream: dict[str, int] = field(default_factory=dict)
    too_few: dict[str, int] = field(default_factory=dict)
    parts: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    peak_rss_bytes: int = 0

    @property
    def exit_code(self) -> int:
        """0 only if nothing differs and the stream had enough difficult events."""
        return 1 if self.differences or self.too_few else 0

    @property
    def losses(self) -> dict[str, int]:
        """The known losses before Kafka in all tables: kind -> number of cells."""
        total: Counter[str] = Counter()
        for table in self.tables:
            total.update(table.losses)
        return dict(total)

    def to_json(self) -> str:
        return json.dumps(asdict(self))
