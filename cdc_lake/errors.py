"""Every error that cdc_lake raises on purpose.

    CdcLakeError                     exit 1   unexpected
    ├── DriverDiedError              exit 1   the driver's JVM ended or ran out of memory
    ├── ConfigError                  exit 2   wrong setting, flag or installation
    │   ├── UnknownTableError                 no such topic or table; suggests similar names
    │   ├── InstallationError                 jars, Java or Spark missing, damaged or of the wrong version
    │   ├── UnsupportedError                  valid input that this version does not support
    │   ├── RefusedError                      valid input that the table's settings reject
    │   ├── ModelError                        invalid header or SQL in a gold model
    │   ├── ExpiredError                      the table no longer retains the requested version
    │   ├── ForeignEntryError                 the catalog's entry of that name belongs to another table
    │   ├── TimeTravelError                   bronze cannot reproduce the requested source time or offset
    │   ├── IncompatibleSchemaError           an Avro schema does not match the columns or its previous version
    │   └── SchemaChangeError                 a change of the source's columns that `schema.evolution` does not allow
    ├── InfrastructureError          exit 10  a server does not respond, or a disk is full; retry later
    ├── DataLossError                exit 20  records were deleted before they were read, or the log was replaced
    │   ├── NoProgressError                   no retained commit has the table's progress
    │   ├── DuplicateKeyError                 silver has several rows with the same key
    │   ├── DamagedFileError                  a file of the lake is missing, truncated or damaged
    │   └── BronzeBehindError                 bronze was restored, and lacks records that silver has merged
    ├── QualityGateError             exit 30  quarantined records exceed a limit, or there must not be any
    │   ├── KeyConstraintError                a gold model's result has null or duplicate keys
    │   ├── ExpectationError                  rows violate an expectation, or values do not fit a `schema.cast`
    │   ├── CatalogDriftError                 the catalog differs from the tables
    │   └── SourceDifferenceError             silver differs from the source database
    └── TableLockedError             exit 40  another run is writing this table, or has written it meanwhile
        └── IncompleteWriteError              a file of the table is incomplete: in progress, or its writer was killed

A message reads `where: what; what to do`. A bad *record* never raises an error: it becomes a quarantined row.
Each error has a code; docs/reference/errors.md lists them.
"""

from collections.abc import Iterable
from typing import ClassVar


class CdcLakeError(Exception):
    """An error without a code of its own, mostly a bug. Run again with `--debug` and report it.

    Args:
        where: the table, file, setting or server concerned.
        what: what is wrong.
        cure: what the user can do about it.
    """

    code: ClassVar[str] = "CDC-100"
    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False

    def __init__(self, where: str, what: str, cure: str) -> None:
        super().__init__(f"{where}: {what}; {cure}")
        self.where = where
        self.what = what
        self.cure = cure


class DriverDiedError(CdcLakeError):
    """The driver's JVM ended or ran out of memory. The running batches were not committed. Give the driver more memory,
    or lower `read.max_batch_bytes`.
    """

    code = "CDC-101"


class ConfigError(CdcLakeError):
    """A setting, a flag or a permission is wrong. Most are found before the run starts; one found later ends the
    table's run, and the batches committed before are kept.
    """

    code = "CDC-200"
    exit_code = 2


class UnknownTableError(ConfigError):
    """No topic, table or model has the requested name, or it was not landed yet."""

    code = "CDC-201"


class InstallationError(ConfigError):
    """Jars, Java or Spark are missing, damaged or of the wrong version."""

    code = "CDC-202"


class UnsupportedError(ConfigError):
    """The input is valid, but this version does not support it. It was not applied."""

    code = "CDC-203"


class RefusedError(ConfigError):
    """The input is valid, but the table's settings reject it, such as a TRUNCATE with `deletes.truncates: refuse`."""

    code = "CDC-204"


class ModelError(ConfigError):
    """The header of a gold model is invalid, or Spark rejects its SQL."""

    code = "CDC-205"


class ExpiredError(ConfigError):
    """The table no longer retains the requested version."""

    code = "CDC-206"


class ForeignEntryError(ConfigError):
    """The catalog has an entry of that name for another table. The entry was not changed."""

    code = "CDC-207"


class TimeTravelError(ConfigError):
    """Bronze cannot reproduce the table as of the requested source time or offset."""

    code = "CDC-208"


class IncompatibleSchemaError(ConfigError):
    """An Avro schema does not match the columns, or is incompatible with the registered version. Nothing was sent,
    unless the error says that a part may be.
    """

    code = "CDC-209"


class SchemaChangeError(ConfigError):
    """The source's columns changed in a way that the table's `schema.evolution` does not allow."""

    code = "CDC-210"


class InfrastructureError(CdcLakeError):
    """A server does not respond, or a disk or a system limit is exhausted. Run again."""

    code = "CDC-300"
    exit_code = 10
    retryable = True


class DataLossError(CdcLakeError):
    """Records were deleted before they were read, the log was replaced, or bronze no longer has the history that a
    rebuild needs.
    """

    code = "CDC-400"
    exit_code = 20


class NoProgressError(DataLossError):
    """None of the table's commits has what each run stores in it: how far it has read. Restore a version that has it,
    or rebuild the table.
    """

    code = "CDC-401"


class DuplicateKeyError(DataLossError):
    """Silver has several rows with the same key, because another program wrote to it. The batch was not committed."""

    code = "CDC-402"


class DamagedFileError(DataLossError):
    """A file of the lake is missing, truncated or damaged."""

    code = "CDC-403"

    def __init__(
        self,
        where: str,
        what: str,
        cure: str = "restore it from a backup, or follow docs/reference/errors.md",
    ) -> None:
        super().__init__(where, what, cure)


class BronzeBehindError(DataLossError):
    """Bronze was restored or replaced, and lacks records that silver has merged. Silver was not changed, because its
    rows would return to older ones. Run bronze, then silver.
    """

    code = "CDC-404"
    retryable = True


class QualityGateError(CdcLakeError):
    """More records are quarantined than `quality.max_quarantined` allows, or no record of a batch could be used: the
    batch is committed. Or a record cannot be read and `quality.on_error` is `stop`: the batch is not committed.
    """

    code = "CDC-500"
    exit_code = 30


class KeyConstraintError(QualityGateError):
    """The result of a gold model has null or duplicate keys. The table was not changed."""

    code = "CDC-501"


class ExpectationError(QualityGateError):
    """Rows violate an expectation with `on_fail: stop`, or values do not fit a `schema.cast`. The batch was not
    committed; earlier batches are kept.
    """

    code = "CDC-502"


class CatalogDriftError(QualityGateError):
    """The catalog's entries differ from the tables."""

    code = "CDC-503"


class SourceDifferenceError(QualityGateError):
    """Silver's rows differ from the source database."""

    code = "CDC-504"


class TableLockedError(CdcLakeError):
    """Another run is writing the table, or has written it during this run."""

    code = "CDC-600"
    exit_code = 40
    retryable = True


class IncompleteWriteError(TableLockedError):
    """A file of the table is incomplete: a run is writing it, or was killed while it wrote. Run the job that writes the
    table.
    """

    code = "CDC-601"


SEVERITY = (20, 1, 30, 2, 10, 40)
"""Precedence of exit codes: a run of several tables ends with the first of these that occurred."""


def worst_exit_code(codes: Iterable[int]) -> int:
    """The exit code of a run whose tables ended with `codes`; 0 only if all of them are 0."""
    seen = set(codes)
    return next((code for code in SEVERITY if code in seen), 0)
