"""Every error cdc_lake raises on purpose.

    CdcLakeError                     exit 1   unexpected
    ├── DriverDiedError              exit 1   the driver's memory does not suffice
    ├── ConfigError                  exit 2   a setting, a flag or the installation is wrong
    │   ├── UnknownTableError                 no such topic or table; names the nearest
    │   ├── InstallationError                 jars, Java or Spark missing, damaged or of the wrong version
    │   ├── UnsupportedError                  legal input this version does not handle yet
    │   ├── RefusedError                      legal input that the table's settings refuse
    │   ├── ModelError                        a gold model's file is wrong: its header or its SQL
    │   ├── ExpiredError                      the table has let go of the version asked for
    │   ├── ForeignEntryError                 the catalog has an entry of that name that is not ours
    │   ├── TimeTravelError                   bronze cannot tell a table as of the source time or offset asked for
    │   ├── IncompatibleSchemaError           an Avro schema does not fit the columns, or the version before it
    │   └── SchemaChangeError                 the source's columns changed in a way that the table's settings refuse
    ├── InfrastructureError          exit 10  a server does not answer, or a disk is full; try again later
    ├── DataLossError                exit 20  records are gone, or the source's log is not the one we knew
    │   ├── NoProgressError                   no commit that is left says what the table has consumed
    │   ├── DuplicateKeyError                 silver has several rows of one key
    │   └── DamagedFileError                  a file of the lake is missing, cut short or damaged
    ├── QualityGateError             exit 30  too much was quarantined, or `on_error: stop` met a bad record
    │   ├── KeyConstraintError                a gold model's result has a null or a repeated key
    │   ├── ExpectationError                  rows do not meet an expectation, or values do not fit a `schema.cast`
    │   ├── CatalogDriftError                 the catalog says other than the tables
    │   └── SourceDifferenceError             silver holds other rows than the source
    └── TableLockedError             exit 40  another run is writing this table, or has written it
        └── IncompleteWriteError              a file of the table is being written, or its writer was killed

A message reads `where: what; what to do`. A bad *record* is never an error: it becomes a quarantined row.
Each has a code; docs/reference/errors.md lists them.
"""

from collections.abc import Iterable
from typing import ClassVar


class CdcLakeError(Exception):
    """Base of all errors of cdc_lake.

    Args:
        where: what was being worked on (table, file, server).
        what: what is wrong there.
        todo: what the reader can do next.
    """

    code: ClassVar[str] = "CDC-100"
    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False

    def __init__(self, where: str, what: str, todo: str) -> None:
        super().__init__(f"{where}: {what}; {todo}")
        self.where = where
        self.what = what
        self.todo = todo


class DriverDiedError(CdcLakeError):
    """The driver's JVM has ended, or runs out of memory; nothing of the batch was committed."""

    code = "CDC-101"


class ConfigError(CdcLakeError):
    """A setting, a flag or a permission is wrong. Most are found before the run starts; one found later ends the
    table's run, and the batches committed before stay.
    """

    code = "CDC-200"
    exit_code = 2


class UnknownTableError(ConfigError):
    """The table asked for does not exist."""

    code = "CDC-201"


class InstallationError(ConfigError):
    """Jars, Java or Spark are missing, damaged or of the wrong version."""

    code = "CDC-202"


class UnsupportedError(ConfigError):
    """What arrived is legal, but this version cannot do it right, so it does not do it at all."""

    code = "CDC-203"


class RefusedError(ConfigError):
    """What arrived is legal, and the table's settings say that it is not to be applied."""

    code = "CDC-204"


class ModelError(ConfigError):
    """A gold model's file is wrong: its header is not one, or Spark does not take its SQL."""

    code = "CDC-205"


class ExpiredError(ConfigError):
    """The table has let go of the version asked for."""

    code = "CDC-206"


class ForeignEntryError(ConfigError):
    """The catalog has an entry of that name that is not of this table; it was left as it is."""

    code = "CDC-207"


class TimeTravelError(ConfigError):
    """Bronze cannot tell the table as of the source time or offset asked for."""

    code = "CDC-208"


class IncompatibleSchemaError(ConfigError):
    """An Avro schema does not fit the columns, or is incompatible with the version registered before it. Nothing was
    sent, unless the error says that a part may be.
    """

    code = "CDC-209"


class SchemaChangeError(ConfigError):
    """The source's columns changed, and the table's `schema.evolution` does not allow what that brings."""

    code = "CDC-210"


class InfrastructureError(CdcLakeError):
    """A server does not answer, or a disk or limit of the system is exhausted; the same run can be repeated."""

    code = "CDC-300"
    exit_code = 10
    retryable = True


class DataLossError(CdcLakeError):
    """Records were removed before they were read, the log is another one than before, or bronze no longer has the
    history that a rebuild needs.
    """

    code = "CDC-400"
    exit_code = 20


class NoProgressError(DataLossError):
    """None of the commits that are left says what the table has consumed."""

    code = "CDC-401"


class DuplicateKeyError(DataLossError):
    """Silver has several rows of one key, because another program wrote to it; the batch was not committed."""

    code = "CDC-402"


class DamagedFileError(DataLossError):
    """A file of the lake is missing, cut short or damaged."""

    code = "CDC-403"

    def __init__(
        self,
        where: str,
        what: str,
        todo: str = "restore it from a backup, or follow docs/reference/errors.md",
    ) -> None:
        super().__init__(where, what, todo)


class QualityGateError(CdcLakeError):
    """More records were quarantined than `quality.max_quarantined` allows: the batch is committed. Or a record cannot
    be read and `quality.on_error` is `stop`: the batch is not committed.
    """

    code = "CDC-500"
    exit_code = 30


class KeyConstraintError(QualityGateError):
    """The result of a gold model has a null or a repeated key; the table was left as it was."""

    code = "CDC-501"


class ExpectationError(QualityGateError):
    """Rows do not meet an expectation with `on_fail: stop`, or values do not fit a `schema.cast`. The batch was not
    committed; earlier batches stay.
    """

    code = "CDC-502"


class CatalogDriftError(QualityGateError):
    """What the catalog says of the tables is not what they are."""

    code = "CDC-503"


class SourceDifferenceError(QualityGateError):
    """Silver holds other rows than the source database."""

    code = "CDC-504"


class TableLockedError(CdcLakeError):
    """Another run is writing the table, or has written it while this one worked."""

    code = "CDC-600"
    exit_code = 40
    retryable = True


class IncompleteWriteError(TableLockedError):
    """A file of the table is incomplete: it is being written, or the run that wrote it was killed."""

    code = "CDC-601"


SEVERITY = (20, 1, 30, 2, 10, 40)
"""Exit codes of a run over several tables: the first of these that occurred is the run's."""


def worst_exit_code(codes: Iterable[int]) -> int:
    """The exit code of a run whose tables ended with `codes`: 0 only if all of them did."""
    seen = set(codes)
    return next((code for code in SEVERITY if code in seen), 0)
