"""Dates, timestamps, times of day and decimals from numbers, bytes and texts, by Spark's own expressions. What no table
can store becomes null.

Spark has decimals of up to 38 digits and no other number to read longer ones with. Up to 8 bytes are a bigint's digits.
Longer numbers are converted from base 2^16 to base 10^14 digit by digit, as on paper; the time grows with the square of
the length: 40 digits take some 30 microseconds, a thousand some milliseconds, a hundred thousand two minutes. So longer
ones are quarantined (`is_too_long`).
"""

import json
from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from cdc_lake.decode.schemas import MAX_DECIMAL_PRECISION

_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""0001-01-01 and 9999-12-31 in days from 1970: what Spark, Parquet readers and Python hold alike."""
_DAY_MICROS = 86_400_000_000
_FIRST_MICRO, _LAST_MICRO = _FIRST_DAY * _DAY_MICROS, (_LAST_DAY + 1) * _DAY_MICROS - 1
_DATE = r"(?!0000)\d{4}-\d{2}-\d{2}"
_ZONE = r"(Z|[-+]\d{2}(:?\d{2}(:?\d{2})?)?)?"
_ISO_DATE = rf"^{_DATE}([T ]\d{{2}}:\d{{2}}(:\d{{2}}(\.\d+)?)?)?{_ZONE}$"
_TIME_OF_DAY = r"^\d{2}:\d{2}:\d{2}(\.\d+)?Z?$"

NUMBER = r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d{1,9})?$"
"""The text of a number."""
MAX_DIGITS = 1_000
"""The largest precision, and the largest scale, that Postgres lets a `numeric` declare."""
_MAX_BYTES = 416
"""The size of a whole number with `MAX_DIGITS` digits."""
_MAX_BYTES_OF_NEGATIVE_SCALE = 1266
"""The size with 2048 digits more: Debezium sends a negative scale of Postgres as 2048 more, and as many zeros."""
_BASE, _BASE_DIGITS = 10**14, 14
"""The largest limb, so that limb * 2^16 fits a bigint."""
_LARGEST_SCALE = 20_000
"""More than any database has; a few bytes could else ask for a text that fills the memory."""


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
    return F.when(millis.between(_FIRST_MICRO // 1000, _LAST_MICRO // 1000), F.timestamp_millis(millis))


def timestamp_of_nanos(nanos: Column) -> Column:
    """The timestamp of a number of nanoseconds since 1970; the largest and the smallest are Postgres' infinities."""
    return F.when(~nanos.isin(2**63 - 1, -(2**63)), timestamp(micros_of_nanos(nanos)))


def timestamp_of_text(text: Column) -> Column:
    """ISO text; `infinity`, years of more than four digits and years before 1 are out of range, also in UTC."""
    parsed = F.when(text.rlike(_ISO_DATE), F.try_to_timestamp(text))
    return F.when(F.unix_micros(parsed).between(_FIRST_MICRO, _LAST_MICRO), parsed)


def micros_of_millis(millis: Column) -> Column:
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


def plain_text(unscaled: Column, scale: Column) -> Column:
    """The plain decimal text of unscaled / 10^scale, with exactly `scale` digits after the point if there are any.

    With a scale that no database has, an exponent replaces the zeros.

    Args:
        unscaled: an integer as Java's BigInteger writes it: two's complement, big-endian; binary.
        scale: may be negative; int.
    """
    return _let(_whole_text(unscaled), lambda text: _with_point(text, scale))


def is_too_long(unscaled: Column, scale: int = 0) -> Column:
    """Whether a number has too many digits to write out; null for null.

    Args:
        scale: the scale of all numbers of the column, if they share one.
    """
    return F.length(unscaled) > (_MAX_BYTES if scale <= MAX_DIGITS else _MAX_BYTES_OF_NEGATIVE_SCALE)


def decimal_of_bytes(unscaled: Column, scale: int) -> Column:
    """Spark's widest decimal with a scale, from its unscaled bytes; null if they are none, or have more digits."""
    # Avro's decimal is a length and these bytes, so the JVM's own reader decodes it.
    fields = {"logicalType": "decimal", "precision": MAX_DECIMAL_PRECISION, "scale": scale}
    length = F.unhex(F.lpad(F.hex(F.length(unscaled) * 2), 2, "0"))
    decimal = from_avro(F.concat(length, unscaled), json.dumps({"type": "bytes", **fields}), {"mode": "PERMISSIVE"})
    return F.when(F.length(unscaled).between(1, 16), decimal)


def decimal_of_text(text: Column, precision: int, scale: int) -> Column:
    """A decimal from a number's text; null if it is not a number, or loses a digit."""
    # Shifting the point of a number with a huge exponent would fill the memory, so digits are counted in the text.
    return F.when(_fraction_digits(text) <= scale, text.cast(f"decimal({precision},{scale})"))


def text_with_scale(text: Column, scale: int) -> Column:
    """A number's text as `plain_text` writes it; null if it is not a number, loses a digit, or has too many."""
    # -1.50e1 with scale 2: the digits 15, one of them after the point; 2 - (1 - 1) zeros; -1500, so -15.00.
    all_digits = F.concat(F.regexp_extract(text, r"^[-+]?(\d*)", 1), _sent_fraction(text))
    # `ltrim` removes blanks only. So zeros become blanks, and the blanks that are left become zeros again.
    digits = F.translate(F.ltrim(F.translate(all_digits, "0", " ")), " ", "0")
    zeros = F.lit(scale) - _fraction_digits(text)
    is_short = zeros.between(0, 2 * MAX_DIGITS) & (F.length(text) <= 2 * MAX_DIGITS)
    shifted = F.concat(
        F.when(text.startswith("-"), "-").otherwise(""), digits, F.call_function("repeat", F.lit("0"), zeros)
    )
    unscaled = F.when(F.translate(shifted, "-0", "") == "", "0").otherwise(shifted)
    return F.when(is_short, _let(unscaled, lambda whole: _with_point(whole, F.lit(scale))))


def _fraction_digits(text: Column) -> Column:
    """How many digits after the point a number needs, int; negative for 1E3, null for a text that is not a number."""
    exponent = F.coalesce(F.regexp_extract(text, r"[eE]([-+]?\d+)$", 1).cast("int"), F.lit(0))
    return F.when(text.rlike(NUMBER), F.length(_sent_fraction(text)) - exponent)


def _sent_fraction(text: Column) -> Column:
    """The digits after the point, without zeros at the end: `5` of 1.500e3."""
    return F.regexp_extract(text, r"\.(\d*?)0*(?:[eE]|$)", 1)


def _let(value: Column, of: Callable[[Column], Column]) -> Column:
    """`of(value)`, with `value` computed once however often `of` names it."""
    return F.transform(F.array(value), of)[0]


def _whole_text(unscaled: Column) -> Column:
    # FE becomes FFFFFFFFFFFFFFFE, and the negative base reads that as -2.
    short = F.conv(F.call_function("lpad", F.hex(unscaled), F.lit(16), _filler(F.hex(unscaled))), 16, -10)
    return F.when(F.length(unscaled) <= 8, short).otherwise(_let(F.hex(unscaled), _long_text))


def _filler(hexadecimal: Column) -> Column:
    """The digit by which a number can be padded on the left without changing its value."""
    return F.when(F.substring(hexadecimal, 1, 1) >= "8", "F").otherwise("0")


def _long_text(hexadecimal: Column) -> Column:
    is_negative = _filler(hexadecimal) == "F"
    length = F.call_function("div", F.length(hexadecimal) + 3, F.lit(4)) * 4
    filled = F.call_function("lpad", hexadecimal, length.cast("int"), _filler(hexadecimal))
    # -x is ~x + 1; the one comes with the last place.
    magnitude = F.when(is_negative, F.translate(filled, "0123456789ABCDEF", "FEDCBA9876543210")).otherwise(filled)
    one = F.when(is_negative, 1).otherwise(0)

    def places_of(known: Column) -> Column:
        return F.transform(
            F.sequence(F.lit(1), length.cast("int"), F.lit(4)),
            lambda start: (
                F.conv(known.substr(start, F.lit(4)), 16, 10).cast("bigint")
                + F.when(start == length - 3, one).otherwise(0)
            ),
        )

    places = _let(magnitude, places_of)
    # Half a byte is less than 1.21 decimal digits; the limbs are the lowest first.
    count = F.call_function("div", F.length(hexadecimal) * 5, F.lit(4 * _BASE_DIGITS)) + 2
    limbs = F.aggregate(places, F.array_repeat(F.lit(0).cast("bigint"), count.cast("int")), _shifted)
    empty = F.struct(F.lit(0).cast("bigint").alias("carry"), F.lit("").alias("text"))
    digits = F.aggregate(limbs, empty, _written, lambda done: F.ltrim(done["text"]))
    return F.concat(F.when(is_negative, "-").otherwise(""), F.regexp_replace(digits, "^0+", ""))


def _shifted(limbs: Column, place: Column) -> Column:
    """limbs * 2^16 + place. A limb may stay a little above the base; its carry is taken with the next place."""

    def limb(own: Column, at: Column) -> Column:
        below = F.call_function("div", limbs[at - 1] * 65_536, F.lit(_BASE))
        return own * 65_536 % _BASE + F.when(at == 0, place).otherwise(below)

    return F.transform(limbs, limb)


def _written(done: Column, limb: Column) -> Column:
    whole = limb + done["carry"]
    digits = F.lpad((whole % _BASE).cast("string"), _BASE_DIGITS, "0")
    return F.struct(
        F.call_function("div", whole, F.lit(_BASE)).alias("carry"), F.concat(digits, done["text"]).alias("text")
    )


def _with_point(text: Column, scale: Column) -> Column:
    is_negative = text.startswith("-")
    digits = F.when(is_negative, text.substr(F.lit(2), F.length(text))).otherwise(text)
    padded = F.call_function("lpad", digits, F.greatest(F.length(digits), scale + 1), F.lit("0"))
    whole, fraction = padded.substr(F.lit(1), F.length(padded) - scale), padded.substr(-scale, scale)
    with_point = F.concat(F.when(is_negative, "-").otherwise(""), whole, F.lit("."), fraction)
    with_zeros = F.concat(text, F.call_function("repeat", F.lit("0"), -scale))
    return (
        F.when((scale == 0) | ((scale < 0) & (text == "0")), text)
        .when(~scale.between(-_LARGEST_SCALE, _LARGEST_SCALE), F.concat(text, F.lit("E"), (-scale.cast("bigint"))))
        .when(scale > 0, with_point)
        .otherwise(with_zeros)
    )
