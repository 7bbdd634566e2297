"""What rows were expected to be, and are not."""

from collections.abc import Mapping, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F

from cdc_lake.config import Expectation
from cdc_lake.errors import ExpectationError
from cdc_lake.metrics.report import TableReport


def is_met(expectation: Expectation) -> Column:
    """Whether a row meets an expectation; one about which the condition says nothing does."""
    return F.coalesce(F.expr(expectation.holds), F.lit(True))


def judge(done: TableReport, expectations: Sequence[Expectation], unmet: Mapping[str, int]) -> None:
    """Note how many rows do not meet each expectation.

    Raises:
        ExpectationError: some do not meet one that is to stop the run.
    """
    for one in expectations:
        number = unmet[one.name]
        done.unmet[one.name] = done.unmet.get(one.name, 0) + number
        if not number:
            continue
        what = f"{number} rows do not meet the expectation `{one.name}`: {one.holds}"
        if one.on_fail == "stop":
            todo = "nothing was written: mend the rows at their source, or set `on_fail` to warn or reject"
            raise ExpectationError(done.table, what, todo)
        done.warn(f"{what}{'; they are left out' if one.on_fail == 'reject' else ''}")
