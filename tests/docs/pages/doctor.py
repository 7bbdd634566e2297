"""The table of the doctor's checks, from `cdc_lake.operations.doctor.findings`."""

from cdc_lake.operations.doctor.findings import CHECKS

from .markdown import code, table, text


def doctor_checks() -> str:
    """Every check with the state that is `ok`."""
    return table(("check", "ok if"), ((code(name), text(what)) for name, what in CHECKS.items()))
