"""Dates, timestamps and times of day from numbers and ISO texts. What no table can store becomes null."""

from pyspark.sql import Column
from pyspark.sql import functions as F

_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""0001-01-01 and 9999-12-31 in days from 1970: what Spark, Parquet readers and Python hold alike."""
_DAY_MICROS = 86_400_000_000
_FIRST_MICRO, _LAST_MICRO = _FIRST_DAY * _DAY_MICROS, (_LAST_DAY + 1) * _DAY_MICROS - 1
_DATE = r"(?!0000)\d{4}-\d{2}-\d{2}"
_ZONE = r"(Z|[-+]\d{2}(:?\d{2}(:?\d{2})?)?)?"
_ISO_DATE = rf"^{_DATE}([T ]\d{{2}}:\d{{2}}(:\d{{2}}(\.\d+)?)?)?{_ZONE}$"
_TIME_OF_DAY = r"^\d{2}:\d{2}:\d{2}(\.\d+)?Z?$"


def date(days: Column) -> Column:
    """The date of a number of days since 1970."""
    return F.when(days.between(_FIRST_DAY, _LAST_DAY), F.date_add(F.lit("1970-01-01").cast("date"), days.cast("int")))


def date_of_text(text: Column) -> Column:
    """An ISO date, with or without a time of day or a zone, which are ignored."""
    return F.when(text.rlike(_ISO_DATE), F.try_to_timestamp(F.substring(text, 1, 10)).cast("date"))


def timestamp(micros: Column) -> Column:
    """The timestamp of a number of microseconds since 1970."""
    return F.when(micros.between(_FIRST_MICRO, _LAST_MICRO), F.timestamp_micros(micros))


def timestamp_of_millis(millis: Column) -> Column:
    """The timestamp of a number of milliseconds since 1970."""
    return F.when(millis.between(_FIRST_MICRO // 1000, _LAST_MICRO // 1000), F.timestamp_millis(millis))


def timestamp_of_nanos(nanos: Column) -> Column:
    """The timestamp of a number of nanoseconds since 1970; the largest and the smallest are Postgres' infinities."""
    return F.when(~nanos.isin(2**63 - 1, -(2**63)), timestamp(micros_of_nanos(nanos)))


def timestamp_of_text(text: Column) -> Column:
    """ISO text; `infinity`, years of more than four digits and years before 1 are out of range, also in UTC."""
    found = F.when(text.rlike(_ISO_DATE), F.try_to_timestamp(text))
    return F.when(F.unix_micros(found).between(_FIRST_MICRO, _LAST_MICRO), found)


def micros_of_millis(millis: Column) -> Column:
    """Microseconds of milliseconds."""
    return millis.cast("bigint") * 1000


def micros_of_nanos(nanos: Column) -> Column:
    """Whole microseconds of nanoseconds, rounded down."""
    return F.call_function("div", nanos, F.lit(1000)) - F.when(nanos % 1000 < 0, 1).otherwise(0)


def micros_of_text(text: Column) -> Column:
    """Microseconds since midnight of an ISO time of day in UTC."""
    hours, minutes, seconds = (F.substring(text, start, 2).cast("bigint") for start in (1, 4, 7))
    fraction = F.rpad(F.regexp_extract(text, r"\.(\d{1,6})", 1), 6, "0").cast("bigint")
    return F.when(text.rlike(_TIME_OF_DAY), ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + fraction)


def has_nanos(nanos: Column) -> Column:
    """Whether nanoseconds have digits beyond microseconds."""
    return nanos % 1000 != 0


def has_nanos_in_text(text: Column) -> Column:
    """Whether an ISO text has digits beyond microseconds."""
    return text.rlike(r"\.\d{6}\d*[1-9]")
