"""Values of every Postgres type: how to generate them, read them back from Postgres, and what the lake must store.

Nothing of the product takes part: what a value becomes follows from docs/reference/types.md, and every loss that is
applied is reported, so that a test can see that each one the page states does happen, and no other.
"""

import base64
import json
import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from random import Random
from typing import Any

from psycopg import sql
from support import source_types as st

DAY = 86_400_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
GAP = date(1582, 10, 5), date(1582, 10, 15)
"""The days that do not exist because the calendar changed."""


@dataclass
class How:
    """The path of a value to the lake.

    Attributes:
        settings: of the connector.
        is_snapshot: whether its row came with the snapshot.
        lost: what it lost on the way, so far.
    """

    settings: Mapping[str, str]
    is_snapshot: bool
    lost: set[str] = field(default_factory=set)

    def loses(self, loss: str, left: Any) -> Any:
        self.lost.add(loss)
        return left


def _as_it_is(value: Any, _: How) -> Any:
    return value


def _read(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Kind:
    """One type.

    Attributes:
        type: as docs/reference/types.md calls it.
        edges: SQL literals that are always among the rows.
        random: any other literal.
        declared: as a column is declared, when that is not its name.
        select: SQL that reads the column `{c}`.
        held: what the lake holds of the value that was read; never called for null.
        read: from what pyarrow gives to what `held` gives, when that is not the same.
    """

    type: str
    edges: Sequence[str]
    random: Callable[[Random], str]
    declared: str = ""
    select: str = "{c}"
    held: Callable[[Any, How], Any] = _as_it_is
    read: Callable[[Any], Any] = _read

    @property
    def column(self) -> str:
        """A name for a column of this type."""
        return "c_" + re.sub(r"\W+", "_", self.type.replace("[]", " array")).strip("_")

    def literal(self, random: Random) -> str:
        dice = random.random()
        return "NULL" if dice < 0.1 else random.choice(self.edges) if dice < 0.3 else self.random(random)


def arrival(kind: str, settings: Mapping[str, str]) -> st.Arrival:
    """The entry of a type in docs/reference/types.md, with the connector's settings."""
    (found,) = (row for row in st.POSTGRES if kind in row.types and row.applies(settings))
    return found


def quoted(text: str) -> str:
    return sql.quote(text)


def quotes(*texts: str) -> list[str]:
    return [quoted(text) for text in texts]


def _whole(low: int, high: int) -> Callable[[Random], str]:
    return lambda random: str(random.randint(low, high))


def _one_of(edges: Sequence[str]) -> Callable[[Random], str]:
    return lambda random: random.choice(edges)


def _text(random: Random, length: int = 20) -> str:
    return quoted("".join(random.choice("abcXYZ 0189'\"\\{},é東🎬\n") for _ in range(random.randint(0, length))))


def _bytes(random: Random) -> str:
    return f"'\\x{random.randbytes(random.randint(0, 30)).hex()}'::bytea"


def _float(random: Random) -> str:
    return quoted(repr(random.choice((random.uniform(-1, 1), random.uniform(-1e30, 1e30), random.gauss(0, 1e-20)))))


def _decimal(digits: int, scale: int) -> Callable[[Random], str]:
    """A number of at most this many digits, with this many of them after the point."""

    def literal(random: Random) -> str:
        size = random.randint(1, digits)
        return f"{Decimal(random.choice((-1, 1)) * random.randrange(10**size)).scaleb(-scale):f}"

    return literal


def _any_decimal(random: Random) -> str:
    return _decimal(random.choice((5, 18, 19, 20, 38, 39, 100)), random.randint(0, 30))(random)


def _date(random: Random) -> str:
    day, era = random.randint(1, 28), " BC" if random.random() < 0.2 else ""
    year = random.choice((random.randint(1, 4000), random.randint(1900, 2100), random.randint(4001, 20000)))
    year = min(year, 4700) if era else year
    return f"'{year:04}-{random.randint(1, 12):02}-{day:02}{era}'"


def _clock(random: Random) -> str:
    return f"{random.randrange(24):02}:{random.randrange(60):02}:{random.uniform(0, 59.999999):09.6f}"


def _time(random: Random) -> str:
    return f"'{_clock(random)}'"


def _timestamp(random: Random) -> str:
    day = _date(random).strip("'")
    return f"'{day.removesuffix(' BC')} {_clock(random)}{' BC' if day.endswith('BC') else ''}'"


def _interval(random: Random) -> str:
    months, days = random.randint(-40, 40), random.randint(-400, 400)
    return f"'{months} mons {days} days {random.choice('+-')}{_clock(random)}'"


def _bit_string(low: int, high: int) -> Callable[[Random], str]:
    return lambda random: f"B'{''.join(random.choice('01') for _ in range(random.randint(low, high)))}'"


_AS_TEXT = "CASE WHEN {c} IS NOT NULL THEN format('%s', {c}) END"
_MICROS = "CASE WHEN isfinite({c}) THEN trunc(extract(epoch FROM {c}) * 1000000)::text ELSE {c}::text END"
_OF_DAY = "(extract(epoch FROM {c}) * 1000000)::int8"
_OF_ZONED = "(extract(epoch FROM {c}) * 1000000)::int8::text || ' ' || extract(timezone FROM {c})::text"


def _number(value: Decimal, how: How, *, scale: int | None, precision: int = 0) -> Any:
    """A numeric; `scale` is none if the column does not declare it."""
    mode, finite = how.settings[st.DECIMALS], value.is_finite()
    if mode == "double":
        near = float(value)
        return how.loses(st.DOUBLE, near) if finite and Decimal(near) != value else near
    if not finite and mode == "precise":
        return how.loses(st.NOT_FINITE, None)
    if not finite:
        spelled = "NAN" if value.is_nan() else "POSITIVE_INFINITY" if value > 0 else "NEGATIVE_INFINITY"
        return how.loses(st.NOT_FINITE_AS_TEXT, spelled)
    text = f"{value:f}"
    if scale is not None and scale < 0:
        return how.loses(st.NEGATIVE_SCALE, f"{text}.{'0' * (2048 + scale)}")
    if mode == "string" or (scale is not None and precision > 38):
        return text
    if scale is not None:
        return value
    if "." in text and text.endswith("0"):
        return how.loses(st.ZEROS, text.rstrip("0").rstrip("."))
    return text


def _numbers(values: Sequence[Decimal | None], how: How, *, scale: int | None, precision: int = 0) -> Any:
    if any(value is not None and not value.is_finite() for value in values):
        return how.loses(st.NOT_FINITE_IN_ARRAY, None)
    return [None if value is None else _number(value, how, scale=scale, precision=precision) for value in values]


def _day(text: str, how: How, *, in_array: bool = False) -> Any:
    if text.endswith("infinity"):
        return how.loses(st.OUT_OF_CALENDAR, None)
    day, _, era = text.partition(" ")
    year, month, of_month = map(int, day.split("-"))
    is_old = in_array or how.is_snapshot  # then Java's old calendar applies
    if (era and not is_old) or year > 9999:
        return how.loses(st.OUT_OF_CALENDAR, None)
    found = date(year, month, of_month)
    if era:
        return how.loses(st.ERA_IN_ARRAY if in_array else st.ERA_IN_SNAPSHOT, found)
    if is_old and GAP[0] <= found < GAP[1]:
        return how.loses(st.GAP_IN_ARRAY if in_array else st.GAP_IN_SNAPSHOT, found + timedelta(days=10))
    return found


def _moment(text: str, how: How) -> Any:
    """A timestamp with a zone."""
    if text.endswith("infinity"):
        return how.loses(st.OUT_OF_CALENDAR, None)
    try:
        return EPOCH + timedelta(microseconds=int(text))
    except OverflowError:
        return how.loses(st.OUT_OF_CALENDAR, None)


def _moment_in_array(text: str, how: How) -> Any:
    if text.endswith("infinity"):
        return how.loses(st.OUT_OF_CALENDAR, None)
    day, clock, era = (*text.replace("+00", "").split(" "), "")[:3]
    found = _day(f"{day} {era}".strip(), how, in_array=True)
    return None if found is None else datetime.fromisoformat(f"{found.isoformat()} {clock}").replace(tzinfo=UTC)


def _wall_clock(text: str, how: How, *, in_array: bool = False) -> Any:
    """A timestamp without a zone."""
    mode = how.settings[st.TIMES]
    is_finite = not text.endswith("infinity")
    if is_finite and mode == "nanoseconds" and not -(2**63) <= int(text) * 1000 < 2**63:
        return how.loses(st.NANO_RANGE, None)
    moment = _moment(text, how)
    if moment is not None and in_array and moment.date() < GAP[1]:
        try:
            moment = how.loses(st.JULIAN, moment + timedelta(days=_days_off(moment.date())))
        except OverflowError:
            moment = how.loses(st.OUT_OF_CALENDAR, None)
    if mode == "connect" and moment is not None and moment.microsecond % 1000:
        return how.loses(st.MILLISECONDS, moment - timedelta(microseconds=moment.microsecond % 1000))
    return moment


def _days_off(day: date) -> int:
    """How much later a day of the Julian calendar is than the day with the same name in ours; also in the gap."""
    year = day.year - (day.month <= 2)
    return 10 if day >= GAP[0] else year // 100 - year // 400 - 2


def _time_of_day(micros: int, how: How, *, in_array: bool = False) -> Any:
    mode = how.settings[st.TIMES]
    if micros == DAY and (mode == "isostring" or in_array):
        return how.loses(st.MIDNIGHT, 0)
    if (mode == "connect" or in_array) and micros % 1000:
        return how.loses(st.MILLISECONDS, micros - micros % 1000)
    return micros


def _zoned_time(text: str, how: How, *, in_array: bool = False) -> Any:
    micros, zone_seconds = map(int, text.split())
    if zone_seconds:
        how.loses(st.ZONE, None)
    if micros + zone_seconds * 1_000_000 == DAY:
        how.loses(st.MIDNIGHT, None)
    if in_array and micros % 1_000_000:
        return how.loses(st.SECONDS, micros % DAY - micros % 1_000_000)
    return micros % DAY


def _read_zoned_time(text: str | None) -> Any:
    if text is None:
        return None
    hours, minutes, seconds = re.fullmatch(r"(\d\d):(\d\d):(\d\d(?:\.\d+)?)Z", text).groups()  # type: ignore[union-attr]
    return (int(hours) * 60 + int(minutes)) * 60_000_000 + int(Decimal(seconds) * 1_000_000)


_PARTS = (
    "(extract(year FROM {c}) * 12 + extract(month FROM {c}))::int8::text || ' ' || extract(day FROM {c})::int8::text"
    " || ' ' || (extract(epoch FROM {c} - date_trunc('day', {c})) * 1000000)::int8::text"
)


def _duration(text: str, how: How) -> Any:
    """An interval; its seconds are converted through a double, and the resulting last microsecond is cut off."""
    months, days, micros = map(int, text.split())
    sign = -1 if micros < 0 else 1
    minutes, of_minute = divmod(abs(micros), 60_000_000)
    seconds = of_minute // 1_000_000 + of_minute % 1_000_000 / 1e6
    if how.settings[st.INTERVALS] == "string":
        kept = sign * (minutes * 60_000_000 + int(Decimal(repr(seconds)) * 1_000_000))
        return (months, days, kept) if kept == micros else how.loses(st.SPLIT_SECOND, (months, days, kept))
    in_minutes = (months * 30.4375 + days) * 24 * 60 + sign * minutes
    kept = int((in_minutes * 60 + sign * seconds) * 1e6)
    if kept != int(months * Decimal("30.4375") * DAY) + days * DAY + micros:
        how.loses(st.SPLIT_SECOND, None)
    return how.loses(st.MONTHS, kept) if months else kept


_ISO_INTERVAL = re.compile(r"P(-?\d+)Y(-?\d+)M(-?\d+)DT(-?\d+)H(-?\d+)M(-?[\d.]+)S")


def _read_duration(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    years, months, days, hours, minutes, seconds = map(Decimal, _ISO_INTERVAL.fullmatch(value).groups())  # type: ignore[union-attr]
    return int(years * 12 + months), int(days), int(((hours * 60 + minutes) * 60 + seconds) * 1_000_000)


def _data(value: bytes, how: How) -> Any:
    mode = how.settings[st.BINARIES]
    if mode == "bytes":
        return value
    return value.hex() if mode == "hex" else base64.b64encode(value).decode()


def _fixed_bits(text: str, _: How) -> Any:
    number = int(text, 2)
    return number.to_bytes((number.bit_length() + 7) // 8, "little")


def _varying_bits(text: str, how: How) -> Any:
    return how.loses(st.BITS, int(text, 2)) if text.startswith("0") else int(text or "0", 2)


def _point(parts: Sequence[float], _: How) -> Any:
    x, y = parts
    return {"x": x, "y": y, "wkb": struct.pack("<BIdd", 1, 1, x, y), "srid": None}


def _half(text: str, _: How) -> Any:
    return [struct.unpack("f", struct.pack("f", number))[0] for number in json.loads(text, parse_int=float)]


def _floats(text: str, _: How) -> Any:
    return json.loads(text, parse_int=float)


def _vectors(texts: Sequence[str | None], how: How) -> Any:
    if None in texts:
        return how.loses(st.NULL_IN_ARRAY, None)
    return [_floats(text, how) for text in texts if text]


def _sparse(text: str, _: How) -> Any:
    entries, size = text.split("/")
    pairs = (entry.split(":") for entry in entries.strip("{}").split(",") if entry)
    return {"dimensions": int(size), "vector": [{"key": int(at), "value": float(number)} for at, number in pairs]}


def _vector(random: Random, opening: str = "[", closing: str = "]") -> str:
    return f"'{opening}{','.join(repr(round(random.uniform(-9, 9), 3)) for _ in range(3))}{closing}'"


def _name(text: str, how: How) -> Any:
    if how.is_snapshot or how.settings[st.UNKNOWN] == "true":
        return text
    return how.loses(st.NAME_IN_STREAM, None)


def _unknown(text: str, how: How) -> Any:
    return _data(text.encode(), how)


def _shape(text: str, how: How) -> Any:
    return how.loses(st.SPELLED_BY_JAVA, _unknown(re.sub(r"\d+", r"\g<0>.0", text), how))


def _never(_: Any, how: How) -> Any:
    return how.loses(st.ALWAYS_NULL, None)


def _integers(values: Sequence[Any], how: How) -> Any:
    if values and isinstance(values[0], list):
        return how.loses(st.DIMENSIONS, [None] * len(values))
    return values


_INNER_ARRAY = "[Ljava.lang.String;"


def _strings(values: Sequence[Any], how: How) -> Any:
    if values and isinstance(values[0], list):
        return how.loses(st.DIMENSIONS_OF_TEXT, [_INNER_ARRAY] * len(values))
    return values


def _read_strings(values: Any) -> Any:
    """The name of a Java object ends with an arbitrary number."""
    is_name = re.compile(re.escape(_INNER_ARRAY) + "@[0-9a-f]+").fullmatch
    return None if values is None else [_INNER_ARRAY if text and is_name(text) else text for text in values]


def _without_nulls(values: Sequence[Any], how: How) -> Any:
    return how.loses(st.NULL_IN_ARRAY, None) if None in values else values


def _kind(name: str, edges: Sequence[str], random: Callable[[Random], str] | None = None, **more: Any) -> Kind:
    return Kind(name, edges, random or _one_of(edges), **more)


def _texts(name: str, *edges: str, random: Callable[[Random], str] | None = None, **more: Any) -> Kind:
    return _kind(name, quotes(*edges), random, **{"select": _AS_TEXT, **more})


def _array_of(
    element: Kind,
    *edges: str,
    held: Callable[[Any, How], Any] | None = None,
    one_held: Callable[[Any, How], Any] | None = None,
) -> Kind:
    """Arrays of a type: empty ones, with nulls, with all of its edges in one, and `edges`."""
    declared = element.declared or element.type
    each = element.select.format(c="element")

    def array(literals: Sequence[str]) -> str:
        return f"ARRAY[{', '.join(literals)}]::{declared}[]"

    def random(random: Random) -> str:
        return array([element.literal(random) for _ in range(random.randint(0, 4))])

    def each_held(values: Sequence[Any], how: How) -> Any:
        return [None if value is None else (one_held or element.held)(value, how) for value in values]

    def read(values: Any) -> Any:
        return None if values is None else [element.read(value) for value in values]

    flattened = f"ARRAY(SELECT {each} FROM unnest({{c}}) WITH ORDINALITY AS e(element, place) ORDER BY place)"
    return Kind(
        f"{element.type}[]",
        [array([]), array(["NULL"]), array([*element.edges, "NULL"]), array(element.edges[:1]), *edges],
        random,
        declared=f"{declared}[]",
        select=f"CASE WHEN {{c}} IS NOT NULL THEN {flattened} END",
        held=held or each_held,
        read=read,
    )


def _numeric(name: str, edges: Sequence[str], random: Callable[[Random], str], scale: int | None, size: int) -> Kind:
    def held(value: Decimal, how: How) -> Any:
        return _number(value, how, scale=scale, precision=size)

    return _kind(name, [*edges, "'NaN'", "0", "NULL"], random, held=held)


def _array_of_numeric(element: Kind, scale: int | None, size: int) -> Kind:
    def held(values: Sequence[Decimal | None], how: How) -> Any:
        return _numbers(values, how, scale=scale, precision=size)

    finite = Kind(element.type, [edge for edge in element.edges if edge[-2:] not in ("N'", "y'")], element.random)
    return _array_of(finite, f"ARRAY[1.5, 'NaN']::{element.type}[]", held=held)


def _tail(kind: Kind, **more: Any) -> Kind:
    return Kind(**{**kind.__dict__, **more})


_EDGES_OF_DATE = quotes(
    *("2020-02-29", "infinity", "-infinity", "0044-03-15 BC", "4713-11-24 BC", "0001-01-01", "0001-12-31 BC"),
    *("9999-12-31", "10000-01-01", "20000-01-01", "1582-10-10", "1970-01-01", "1969-12-31", "5874897-12-31"),
)
_EDGES_OF_TIMESTAMP = quotes(
    *("2020-02-29 01:02:03.123456", "infinity", "-infinity", "0044-03-15 23:59:59.999999 BC", "0001-01-01"),
    *("0001-12-31 23:59:59.999999 BC", "9999-12-31 23:59:59.999999", "10000-01-01", "294276-12-31 23:59:59"),
    *("1969-12-31 23:59:59.999999", "1582-10-10 12:00:00.5", "1677-09-21", "2262-04-12", "2000-01-01 00:00:00.001"),
)
_EDGES_OF_TIME = quotes("24:00:00", "00:00:00", "23:59:59.999999", "12:34:56.123456", "00:00:00.000001", "10:00:00.5")
_EDGES_OF_INTERVAL = quotes(
    *("1 year 2 mons 3 days 04:05:06.123456", "-1 mons", "1 day", "-1 day +02:00", "-00:00:00.5", "0", "100:00:00"),
    *(
        "-15 mons -340 days 02:13:01.877753",
        "-9 mons 11:06:31.847899",
        "178 years",
        "-1 year -11 mons -30 days -23:59:59.999999",
    ),
)
_TEXTS = ("", " padded ", "東京 🎬 é", "line\nbreak", 'it\'s "a" \\ {a,b}', "NULL", "null", "NAN")
SMALLINT = _kind("smallint", ["-32768", "32767", "0"], _whole(-(2**15), 2**15 - 1))
INTEGER = _kind("integer", ["-2147483648", "2147483647", "0"], _whole(-(2**31), 2**31 - 1))
BIGINT = _kind("bigint", ["-9223372036854775808", "9223372036854775807", "0"], _whole(-(2**63), 2**63 - 1))
OID = _kind("oid", ["0", "4294967295"], _whole(0, 2**32 - 1), select="{c}::int8")
REAL = _kind(
    "real", quotes("NaN", "Infinity", "-Infinity", "0.1", "-3.4e38", "1e-45", "0"), _float, select="{c}::float8"
)
DOUBLE = _kind("double precision", quotes("NaN", "Infinity", "-Infinity", "0.1", "1.7e308", "5e-324", "-0"), _float)
BOOLEAN = _kind("boolean", ["true", "false"])
NUMERIC_4_2 = _numeric("numeric(4,2)", ["4.99", "-99.99", "0.10", "-0.01"], _decimal(4, 2), 2, 4)
NUMERIC_50_5 = _numeric("numeric(50,5)", [f"{'9' * 45}.99999", f"-{'1' * 45}.1"], _decimal(50, 5), 5, 50)
NUMERIC = _numeric(
    "numeric",
    [
        *("10.500", "1000", "-1e45", f"1{'0' * 60}.25", "1e-40", "'Infinity'", "'-Infinity'"),
        *(str(sign * 2**bits + more) for bits in (31, 63, 64, 127, 300) for sign in (1, -1) for more in (-1, 0)),
    ],
    _any_decimal,
    None,
    0,
)
CHAR = _texts("char(5)", "ab", "", "12345")
VARCHAR = _texts("varchar(20)", *_TEXTS, random=_text)
TEXT = _texts("text", *_TEXTS, "x" * 5000, random=_text)
BYTEA = _kind("bytea", ["''::bytea", "'\\x00ff80'::bytea"], _bytes, held=_data)
UUID = _texts("uuid", "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "00000000-0000-0000-0000-000000000000")
JSON = _texts("json", '{"a": 1.50, "a": null}', "7", "null", '"text"', '[1, {"b": "東"}]', "{}")
JSONB = _texts("jsonb", '{"b": 1.50, "a": null}', "7", "null", '"text"', '[1, {"b": "東"}]', "{}")
TSVECTOR = _texts("tsvector", "a:1 b:2", "", "'quoted word':3A")
ENUM = _texts("enum", "sad", "ok", "happy", declared="mood")
INET = _texts("inet", "10.0.0.1/8", "10.0.0.1", "::1", "2001:db8::/32")
CIDR = _texts("cidr", "10.0.0.0/8", "2001:db8::/32")
MACADDR = _texts("macaddr", "08:00:2b:01:02:03")
RANGE = _texts("int4range", "[1,5)", "empty", "(,)", "[3,]")
TSRANGE = _texts("tsrange", "[2020-01-01,2021-01-01)", "empty", "[2020-01-01 00:00:00.5,infinity]")
DATE = _kind("date", _EDGES_OF_DATE, _date, select="{c}::text", held=_day)
TIME = _kind("time", _EDGES_OF_TIME, _time, select=_OF_DAY, held=_time_of_day)
TIMETZ = _kind(
    "timetz",
    quotes("10:00:00+05:30", "24:00:00+00", "24:00:00-08", "23:59:59.999999-12", "00:00:00+15", "01:02:03.4Z"),
    lambda random: f"'{_clock(random)}{random.choice(('+00', '-08', '+05:45', '+14'))}'",
    select=_OF_ZONED,
    held=_zoned_time,
    read=_read_zoned_time,
)
TIMESTAMP = _kind("timestamp", _EDGES_OF_TIMESTAMP, _timestamp, select=_MICROS, held=_wall_clock)
TIMESTAMPTZ = _kind("timestamptz", _EDGES_OF_TIMESTAMP, _timestamp, select=_MICROS, held=_moment)
INTERVAL = _kind("interval", _EDGES_OF_INTERVAL, _interval, select=_PARTS, held=_duration, read=_read_duration)
VECTOR = _kind("vector(3)", ["'[1,2,3.5]'", "'[0.1,-1e10,0]'"], _vector, select="{c}::text", held=_floats)
VARBIT = _kind(
    "varbit(12)",
    ["B''", "B'101'", "B'0101'", "B'000000001'", "B'111111111111'"],
    _bit_string(0, 12),
    select="{c}::text",
    held=_varying_bits,
    read=lambda data: None if data is None else int.from_bytes(data, "little"),
)

KINDS = (
    *(SMALLINT, INTEGER, BIGINT, OID, REAL, DOUBLE, BOOLEAN, NUMERIC_4_2, NUMERIC_50_5, NUMERIC),
    _tail(INTEGER, type="domain over integer", declared="whole"),
    _tail(TEXT, type="domain over text", declared="words"),
    _numeric("numeric(38,10)", [f"-{'9' * 28}.{'9' * 10}"], _decimal(38, 10), 10, 38),
    _numeric("numeric(3,5)", ["0.00999", "-0.00001"], _decimal(3, 5), 5, 5),
    _numeric("numeric(5,-2)", ["1234500", "-9999900"], lambda r: f"{r.randint(-99999, 99999)}00", -2, 5),
    _tail(
        _numeric("money", ["92233720368547758.07", "-92233720368547758.08", "0.1"], _decimal(16, 2), 2, 64),
        edges=["'92233720368547758.07'", "'-92233720368547758.08'", "0.1", "0", "NULL"],
        select="{c}::numeric",
    ),
    _kind("bit(1)", ["B'0'", "B'1'"], select="{c}::int::bool"),
    _kind("bit(5)", ["B'10110'", "B'00000'"], _bit_string(5, 5), select="{c}::text", held=_fixed_bits),
    _kind("bit(16)", ["B'1000000000000010'"], _bit_string(16, 16), select="{c}::text", held=_fixed_bits),
    VARBIT,
    _tail(VARBIT, type="varbit"),
    *(CHAR, VARCHAR, TEXT, BYTEA, UUID, JSON, JSONB, TSVECTOR, ENUM, INET, CIDR, MACADDR, RANGE, TSRANGE),
    _texts('"char"', "x", "y"),
    _texts("name", "abc", held=_name),
    _texts("any type, nullable, with a default", "given", declared="text DEFAULT 'none'"),
    _kind("xml", [f"convert_to({quoted(text)}, 'UTF8')::xml" for text in ("<a>é</a>", "<a/>")], select="{c}::text"),
    _texts("macaddr8", "08:00:2b:01:02:03:04:05"),
    _texts("int8range", "[1,)", "empty"),
    _texts("numrange", "[1.50,2.5]", "empty"),
    _texts("tstzrange", "[2020-01-01,2021-01-01)", "(,infinity)"),
    _texts("daterange", "[2020-01-01,2021-01-01)", "empty"),
    *(DATE, TIME, TIMETZ, TIMESTAMP, TIMESTAMPTZ, INTERVAL, VECTOR),
    _tail(TIME, type="time(3)"),
    _tail(TIMESTAMP, type="timestamp(3)"),
    _tail(TIMESTAMPTZ, type="timestamptz(0)"),
    _kind(
        "point",
        ["'(1.5,-2)'", "'(1e300,0.1)'"],
        lambda random: f"point({random.uniform(-180, 180)!r}, {random.uniform(-90, 90)!r})",
        select="CASE WHEN {c} IS NOT NULL THEN ARRAY[({c})[0], ({c})[1]] END",
        held=_point,
    ),
    _kind("halfvec(3)", ["'[1,2,3.5]'"], _vector, select="{c}::text", held=_half),
    _kind("sparsevec(5)", ["'{1:1.5,3:2}/5'", "'{}/5'"], select="{c}::text", held=_sparse),
    *(
        _texts(name, edge, held=_shape)
        for name, edge in (
            ("line", "{1,2,3}"),
            ("lseg", "[(0,0),(1,1)]"),
            ("box", "(1,1),(0,0)"),
            ("path", "((0,0),(1,1))"),
            ("polygon", "((0,0),(1,1),(1,0))"),
            ("circle", "<(0,0),2>"),
        )
    ),
    _texts("tsquery", "a & b", held=_unknown),
    _texts("pg_lsn", "0/16B3748", held=_unknown),
    _texts("txid_snapshot", "10:20:10,14,15", held=_unknown),
    _texts("int4multirange", "{[1,3)}", held=_unknown),
    _texts("composite", "(1,2)", held=_unknown, declared="complex"),
    *(
        _texts(name, *edges)
        for name, *edges in (
            ("money[]", "{1.5}"),
            ("name[]", "{a}"),
            ("interval[]", "{1 day}"),
            ("point[]", '{"(1,2)"}'),
            ("varbit[]", "{101}"),
            ("xml[]", "{}"),
        )
    ),
    _texts("bit(5)[]", "{10110}", "{}", held=_never),
    _tail(_array_of(TEXT, "'{{a,b},{c,d}}'"), select="{c}", held=_strings, read=_read_strings),
    _tail(_array_of(INTEGER, "'{{1,2},{3,4},{5,6}}'"), select="{c}", held=_integers),
    *(_array_of(element) for element in (SMALLINT, BIGINT, OID, REAL, DOUBLE, BOOLEAN, CHAR, VARCHAR, BYTEA)),
    *(_array_of(element) for element in (UUID, JSON, JSONB, INET, CIDR, MACADDR, RANGE, TSRANGE)),
    *(_array_of(element, held=_without_nulls) for element in (TSVECTOR, ENUM)),
    _array_of_numeric(NUMERIC_4_2, 2, 4),
    _array_of_numeric(NUMERIC_50_5, 5, 50),
    _array_of_numeric(NUMERIC, None, 0),
    *(_array_of(element, one_held=partial(element.held, in_array=True)) for element in (DATE, TIME, TIMETZ, TIMESTAMP)),
    _array_of(_tail(TIMESTAMPTZ, select="{c}::text", held=_moment_in_array)),
    _array_of(VECTOR, held=_vectors),
)
"""Every Postgres type that docs/reference/types.md names and the embedded Postgres has."""


def is_same(one: Any, other: Any) -> bool:
    """Equal and of one type; NaN equals NaN."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return type(one) is type(other) and one == other
