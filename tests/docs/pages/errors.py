"""The table of error codes, from the classes of `cdc_lake.errors`."""

from collections.abc import Iterator

from cdc_lake.errors import CdcLakeError

from .markdown import table, text


def classes(error: type[CdcLakeError] = CdcLakeError) -> Iterator[type[CdcLakeError]]:
    """An error of the module `cdc_lake.errors` and those derived from it."""
    if error.__module__ == CdcLakeError.__module__:
        yield error
        for derived in error.__subclasses__():
            yield from classes(derived)


def error_codes() -> str:
    """Every code with its exit code and whether to retry."""
    rows = [
        (
            f"`{error.code}`",
            error.__name__,
            str(error.exit_code),
            "yes" if error.retryable else "no",
            text(" ".join((error.__doc__ or "").partition("Args:")[0].split())),
        )
        for error in sorted(classes(), key=lambda error: error.code)
    ]
    return table(("code", "error", "exit code", "retry", "meaning"), rows)
