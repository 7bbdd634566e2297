"""What bronze calls ok, silver writes with the right value; everything else is quarantined with its column's name.

Random rows of every type, in every format, with one hostile value each. The expected values come from Python's own
numbers and times, not from Spark.
"""

import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from pathlib import Path
from typing import Any, NamedTuple

from conformance.by_lake import table_rows
from pyspark.sql import SparkSession
from support import wire
from support.converters import AnyIdRegistry, Lake, event

UNFIT = object()
"""Of a value that no column of its type can store."""
GOOD_ROWS = 40
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TEXTS = ("", "plain", '"quoted": 1.50, \\', "\\", "é東🎬", "1.50", '{"a":1.0}', "line\nbreak", "-0")
HOSTILE_TEXT = ('"a \\" : 1.50, \\\\"', 'a " : 1.50, \\')


class Sent(NamedTuple):
    """A value as it is sent, and as silver must have it."""

    value: Any
    expected: Any


@dataclass(frozen=True)
class Kind:
    """A type of a schema.

    Attributes:
        schema: Connect's.
        good: random values, as `wire` takes them.
        avro: hostile values in Avro, and in JSON in Base64.
        texts: hostile texts in JSON, in a record whose other decimals are in Base64.
        numeric: likewise, in a record whose other decimals are numbers.
    """

    schema: wire.Schema
    good: Callable[[random.Random], Sent]
    avro: Sequence[tuple[Any, Any]] = ()
    texts: Sequence[tuple[str, Any]] = ()
    numeric: Sequence[tuple[str, Any]] = ()


def micros(number: int) -> datetime:
    return EPOCH + timedelta(microseconds=number)


def decimals(precision: int, scale: int) -> Callable[[random.Random], Sent]:
    def good(rng: random.Random) -> Sent:
        number = rng.choice((0, 1, -1, 10**precision - 1, rng.randrange(-(10**precision) + 1, 10**precision)))
        return Sent(wire.unscaled(number), Decimal(number).scaleb(-scale, LONG))

    return good


LONG = Context(prec=100)
WIDE = (10**10, -(10**10), 2**64 + 5, -(2**64) - 5, 10**38, 10**45)
"""Unscaled numbers that are no decimal(10,2), some only beyond the last eight bytes."""
NOT_NUMBERS = [(text, UNFIT) for text in ('"A"', '"12.3"', "true", "[1]", "{}")]
NUMERIC: Sequence[tuple[str, Any]] = [
    ("12.340", Decimal("12.34")),
    ("1E3", Decimal("1000.00")),
    ("1234", Decimal("1234.00")),
    ("99999999.99", Decimal("99999999.99")),
    ("-0.01", Decimal("-0.01")),
    ("0E-10", UNFIT),
    *((text, UNFIT) for text in ("12.345", "123456789012", "1E10", "1E-999999999", "1E999999999", "true", "{}")),
]
PAIR = wire.struct("fits.Pair", {"small": wire.optional(wire.INT16), "rate": wire.optional(wire.decimal(4, 2))})
TYPES = {
    "small": Kind(
        wire.INT16,
        lambda rng: Sent(*2 * (rng.randrange(-(2**15), 2**15),)),
        [(2**15, UNFIT), (-(2**15) - 1, UNFIT), (2**31 - 1, UNFIT)],
        [(text, UNFIT) for text in ("32768", "1.0", '"5"', "[1]", "true", "99999999999")],
    ),
    "whole": Kind(
        wire.INT64,
        lambda rng: Sent(*2 * (rng.randrange(-(2**63), 2**63),)),
        texts=[("9007199254740993", 2**53 + 1), *((text, UNFIT) for text in (str(2**63), "1e3", '"x"', "{}"))],
    ),
    "ratio": Kind(
        wire.DOUBLE,
        lambda rng: Sent(*2 * (rng.choice((0.0, 1e300, -1.5, rng.random())),)),
        [(math.inf, math.inf)],
        [("1E5", 1e5), ('"Infinity"', math.inf), *((text, UNFIT) for text in ("1e400", '"x"', "true", "[]", '"1d"'))],
    ),
    "flag": Kind(wire.BOOLEAN, lambda _: Sent(True, True), texts=[('"true"', UNFIT), ("1", UNFIT)]),
    "blob": Kind(
        wire.BYTES,
        lambda rng: Sent(*2 * (rng.randbytes(rng.randrange(9)),)),
        texts=[('"A"', UNFIT), ("1234", UNFIT), ('"12.3"', UNFIT), ("{}", UNFIT)],
    ),
    "price": Kind(
        wire.decimal(10, 2),
        decimals(10, 2),
        [*((wire.unscaled(number), UNFIT) for number in WIDE), (b"", UNFIT)],
        NOT_NUMBERS,
        NUMERIC,
    ),
    "wide": Kind(wire.decimal(30, 10), decimals(30, 10), [(wire.unscaled(10**30), UNFIT), (b"", UNFIT)], NOT_NUMBERS),
    "any": Kind(
        wire.decimal(64, 2),
        lambda rng: (lambda sent: Sent(sent.value, f"{sent.expected:f}"))(decimals(60, 2)(rng)),
        [(wire.unscaled(10**1100), UNFIT), (b"", UNFIT)],
        NOT_NUMBERS,
        [
            ("0.07", "0.07"),
            ("-12345678901234567890.10", "-12345678901234567890.10"),
            ("1E2", "100.00"),
            ("7E-2", "0.07"),
            ("-0.0", "0.00"),
            *((text, UNFIT) for text in ("0.001", "1E999999999", "1E-999999999", "[]")),
        ],
    ),
    "variable": Kind(
        wire.VARIABLE_SCALE_DECIMAL,
        lambda rng: Sent({"scale": 2, "value": wire.unscaled(-705)}, "-7.05"),
        [({"scale": 0, "value": b""}, UNFIT), ({"scale": 0, "value": wire.unscaled(10**1100)}, UNFIT)],
        [('{"scale":2}', UNFIT), ('{"value":"Bw=="}', UNFIT), ('{"scale":2,"value":"A"}', UNFIT), ("7.05", UNFIT)],
    ),
    "at": Kind(
        wire.MICRO_TIMESTAMP,
        lambda rng: (lambda number: Sent(number, micros(number)))(rng.randrange(-(10**15), 10**17)),
        [(2**63 - 1, None), (-(2**63), None)],
        [('"2024-05-21"', UNFIT), ("1.5e15", UNFIT)],
    ),
    "finely": Kind(
        wire.primitive("int64", "io.debezium.time.NanoTimestamp"),
        lambda rng: (lambda number: Sent(number, micros(number // 1000)))(rng.randrange(-(10**18), 10**18)),
        [(number, micros(number // 1000)) for number in (-(2**63) + 1, 2**63 - 2, -1)],
    ),
    "zoned": Kind(
        wire.ZONED_TIMESTAMP,
        lambda rng: (lambda moment: Sent(moment.isoformat(), moment))(micros(rng.randrange(-(10**15), 10**17))),
        [("9999-12-31T23:59:59.999999-01:00", None), ("0001-01-01T00:00:00+01:00", None), ("soon", None)],
    ),
    "prices": Kind(
        wire.array(wire.optional(wire.decimal(6, 2))),
        lambda rng: Sent([wire.unscaled(150), None], [Decimal("1.50"), None]),
        [([wire.unscaled(150), wire.unscaled(10**6)], UNFIT), ([wire.unscaled(2**64 + 5)], UNFIT)],
        [('["A"]', UNFIT), ("5", UNFIT), ('{"a":1}', UNFIT)],
        [("[1.50,null,7]", [Decimal("1.50"), None, Decimal("7.00")]), ("[1.505]", UNFIT), ("[12345.0]", UNFIT)],
    ),
    "pair": Kind(
        PAIR,
        lambda rng: Sent({"small": 7, "rate": wire.unscaled(-7)}, {"small": 7, "rate": Decimal("-0.07")}),
        [({"small": 70_000, "rate": None}, UNFIT), ({"small": 1, "rate": wire.unscaled(10**4)}, UNFIT)],
        [('{"small":"x"}', UNFIT), ("[]", UNFIT)],
        [('{"small":1,"rate":0.5}', {"small": 1, "rate": Decimal("0.50")}), ('{"rate":0.555}', UNFIT)],
    ),
    "text": Kind(
        wire.STRING, lambda rng: Sent(*2 * (rng.choice(TEXTS),)), texts=[HOSTILE_TEXT], numeric=[HOSTILE_TEXT]
    ),
}
TABLE = wire.Table(
    "fits.public.value", {"id": wire.INT32, **{n: wire.optional(k.schema) for n, k in TYPES.items()}}, ["id"]
)
ENVELOPE = wire.envelope(TABLE)


class Case(NamedTuple):
    """A record's expected row; the column is that of its hostile value, if it has one."""

    row: Mapping[str, Any]
    column: str | None = None


def checked(lake: Lake, cases: Mapping[int, Case]) -> None:
    """Check bronze's reasons and silver's rows."""
    landed = lake.land()
    assert landed.error is None
    lake.fold()
    problems, rows = lake.problems(), {row["id"]: row for row in table_rows(lake.table("silver").path)}
    unfit = {key for key, case in cases.items() if case.column and case.row[case.column] is UNFIT}
    assert {
        key: problems.get(key, "ok") for key, case in cases.items() if (key in unfit) != named(problems.get(key), case)
    } == {}
    wrong = [
        (key, case.column, name, rows[key][name], value)
        for key, case in cases.items()
        if key not in unfit
        for name, value in case.row.items()
        if rows[key][name] != value
    ]
    assert wrong == []
    assert rows.keys() == cases.keys() - unfit


def named(problem: str | None, case: Case) -> bool:
    """Whether a record is quarantined, and the reason names the column of its hostile value."""
    if problem is not None:
        assert case.column is not None, problem
        assert case.column in problem, problem
    return problem is not None


def test_ok_records_with_schemas_reach_silver_unchanged(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(7)
    registry = AnyIdRegistry()
    registry.put("contentId:1", wire.json_text(wire.avro_schema(ENVELOPE)).decode())
    lake, cases = Lake(spark, tmp_path, registry, topic=TABLE.name), dict[int, Case]()
    for how, column, hostile in _with_schemas():
        key = len(cases)
        sent = {name: kind.good(rng) if rng.random() < 0.9 else Sent(None, None) for name, kind in TYPES.items()}
        if how == "numeric":
            sent |= {name: _numeric(name, sent[name]) for name in ("price", "wide", "any")}
            sent |= {"prices": Sent(Raw("[1.50]"), [Decimal("1.50")]), "pair": Sent(None, None)}
        if column:
            sent[column] = hostile
        row = {"id": key, **{name: one.value for name, one in sent.items()}}
        cases[key] = Case({"id": key, **{name: one.expected for name, one in sent.items()}}, column)
        lake.send((wire.json_record(TABLE.key, {"id": key}), []), _value(how, row))

    checked(lake, cases)


class Raw(str):
    """Text to write into JSON as it is."""


def _with_schemas() -> Iterator[tuple[str, str | None, Any]]:
    """The format, the hostile value and its column of each record."""
    for how in ("avro", "base64", "numeric"):
        yield from ((how, None, None) for _ in range(GOOD_ROWS))
    for name, kind in TYPES.items():
        for value, expected in kind.avro:
            yield "avro", name, Sent(value, expected)
            if value != math.inf:
                yield "base64", name, Sent(value, expected)
        for text, expected in kind.texts:
            yield "base64", name, Sent(Raw(text), expected)
        for text, expected in kind.numeric:
            yield "numeric", name, Sent(Raw(text), expected)


def _numeric(name: str, sent: Sent) -> Sent:
    """A decimal as a number, as Java writes it."""
    if sent.expected is None:
        return sent
    return Sent(Raw(str(Decimal(sent.expected)).replace("E+", "E")), sent.expected)


def _value(how: str, row: Mapping[str, Any]) -> tuple[bytes, wire.Headers]:
    raws = {f"@{name}@": value for name, value in row.items() if isinstance(value, Raw)}
    plain = {name: None if isinstance(value, Raw) else value for name, value in row.items()}
    change = event("c", plain, row["id"] + 1)
    if how == "avro":
        return wire.framed("id4", "id:1", wire.avro_record(ENVELOPE, change), "value")
    record = json.loads(wire.json_record(ENVELOPE, change))
    record["payload"]["after"] |= {mark.strip("@"): mark for mark in raws}
    text = wire.json_text(record).decode()
    for mark, raw in raws.items():
        text = text.replace(f'"{mark}"', raw)
    return text.encode(), []


MOMENT = datetime(2024, 5, 21, 14, 0, 0, 123_456, tzinfo=UTC)
DECLARED: Mapping[str, tuple[str, Sequence[tuple[str, Any]], Sequence[str]]] = {
    "tiny": ("tinyint", [("-128", -128), ("127", 127)], ["200", "1.0", "x", "1e1"]),
    "small": ("short", [("-32768", -32768)], ["32768", "true"]),
    "amount": (
        "Decimal(10, 2)",
        [("12.340", Decimal("12.34")), ("1E3", Decimal(1000)), ("99999999.99", Decimal("99999999.99"))],
        ["12.345", "123456789.1", "1E-999999999", "1E999999999", "much", "1d"],
    ),
    "exact": ("decimal(38,19)", [("0.1234567890123456789", Decimal("0.1234567890123456789"))], ["1E19", "x"]),
    "ratio": ("double", [("-1.5e300", -1.5e300), ("NaN", math.nan), ("7", 7.0)], ["1e400", "1d", "0x1"]),
    "near": ("float", [("0.5", 0.5)], ["1e39", "x"]),
    "day": (
        "date",
        [("2024-05-21", date(2024, 5, 21))],
        ["19864", "2024-02-30", "0000-01-01", "20240521", "2024-05-21x"],
    ),
    "days": ("date_days", [("19864", date(2024, 5, 21)), ("-1", date(1969, 12, 31))], ["2932897", "1.5", "2024-05-21"]),
    "at": (
        "timestamp",
        [("2024-05-21T14:00:00.123456Z", MOMENT), ("2024-05-21T19:30:00.123456+05:30", MOMENT)],
        ["1716300000", "1716300000123", "9999-12-31T23:59:59-01:00", "2024-13-01T00:00:00Z", "soon"],
    ),
    "secs": ("timestamp_s", [("1716300000.123456", MOMENT), ("-1", micros(-(10**6)))], ["1716300000123", "1e9", "x"]),
    "millis": ("timestamp_ms", [("1716300000123", MOMENT.replace(microsecond=123_000))], ["1716300000123456", "1.5"]),
    "mics": ("timestamp_us", [("1716300000123456", MOMENT)], ["9223372036854775807", "99999999999999999999"]),
    "nanos": (
        "TIMESTAMP_NS",
        [("1716300000123456789", MOMENT), ("-9223372036854775807", micros(-(2**63) // 1000))],
        ["x"],
    ),
}
"""By column: the declared type, good texts with their values, and texts that do not fit."""
JSON_ONLY: Mapping[str, tuple[str, Sequence[tuple[str, Any]], Sequence[str]]] = {
    "whole": ("bigint", [("9007199254740993", 2**53 + 1)], ["9223372036854775808", '"x"', "1.0", "{}"]),
    "flag": ("boolean", [("true", True)], ["1", '"x"']),
    "blob": ("binary", [('"AQ=="', b"\1")], ['"A"', "1234"]),
    "lines": (
        "array<struct<Qty: int, price: decimal(6,2), at: timestamp_ms>>",
        [
            (
                '[{"Qty":1,"price":1.10,"at":1},{"price":"2"}]',
                [
                    {"Qty": 1, "price": Decimal("1.10"), "at": micros(1000)},
                    {"Qty": None, "price": Decimal(2), "at": None},
                ],
            )
        ],
        ['[{"price":1.105}]', '[{"at":"2024-05-21"}]', '[{"Qty":"x"}]', "5", "{}"],
    ),
    "rates": ("map<string,decimal(4,2)>", [('{"a":0.10}', [("a", Decimal("0.10"))])], ['{"a":0.105}', "[]"]),
    "free": (
        "",
        [
            *((text, text) for text in ("12345678901234567.89", "5.10", "1E400", "-0", "0.0", "123456789012345678901")),
            ('{"rate":12345678901234567.89,"n":[1.50,-0,{"x":"a 1.50 \\" 2.50"}]}',) * 2,
            ('"1.50 \\" 2.50: \\\\"', '1.50 " 2.50: \\'),
            ("null", None),
        ],
        [],
    ),
}
"""Likewise, in JSON texts; `free` is not declared."""


def _declared_cases(
    columns: Mapping[str, tuple[str, Sequence[tuple[str, Any]], Sequence[str]]],
) -> Iterator[tuple[dict[str, str], Case]]:
    """Texts by column, and what becomes of them."""
    rng = random.Random(11)

    def good() -> dict[str, tuple[str, Any]]:
        return {name: rng.choice(texts) for name, (_, texts, _) in columns.items()}

    def case(values: dict[str, tuple[str, Any]], column: str | None = None) -> tuple[dict[str, str], Case]:
        return {n: text for n, (text, _) in values.items()}, Case({n: e for n, (_, e) in values.items()}, column)

    for _ in range(GOOD_ROWS):
        yield case(good())
    for name, (_, texts, unfit) in columns.items():
        for one in texts:
            yield case(good() | {name: one})
        for text in unfit:
            yield case(good() | {name: (text, UNFIT)}, name)


def _comparable(case: Case, key: int) -> Case:
    """NaN equals nothing, so it is left out."""
    row = {n: v for n, v in case.row.items() if not (isinstance(v, float) and math.isnan(v))}
    return Case({"id": key, **row}, case.column)


def test_ok_plain_json_reaches_silver_unchanged(spark: SparkSession, tmp_path: Path) -> None:
    columns = {**DECLARED, **JSON_ONLY}
    types = {"id": "int", **{name: kind for name, (kind, _, _) in columns.items() if kind}}
    lake = Lake(
        spark,
        tmp_path,
        AnyIdRegistry(),
        topic=TABLE.name,
        key={"wire_format": "json"},
        value={"wire_format": "json", "columns": types},
    )
    cases, rng = dict[int, Case](), random.Random(3)
    for key, (texts, case) in enumerate(_declared_cases(columns)):
        is_text = {n: n in DECLARED and (rng.random() < 0.3 or not _is_json(text)) for n, text in texts.items()}
        fields = [f'"id":{key}', *(f'"{n}": {json.dumps(t) if is_text[n] else t}' for n, t in texts.items())]
        cases[key] = _comparable(case, key)
        lake.send((b'{"id":%d}' % key, []), (("{" + " , ".join(fields) + "}").encode(), []))

    checked(lake, cases)


def _is_json(text: str) -> bool:
    try:
        return text != "NaN" and json.loads(text) is not ...
    except ValueError:
        return False


def test_ok_csv_reaches_silver_unchanged(spark: SparkSession, tmp_path: Path) -> None:
    types = {"id": "int", **{name: kind for name, (kind, _, _) in DECLARED.items()}}
    lake = Lake(
        spark,
        tmp_path,
        AnyIdRegistry(),
        topic=TABLE.name,
        key={"wire_format": "string", "columns": ("id",)},
        value={"wire_format": "csv", "columns": types},
    )
    cases = dict[int, Case]()
    for key, (texts, case) in enumerate(_declared_cases(DECLARED)):
        cases[key] = _comparable(case, key)
        lake.send((b"%d" % key, []), (",".join((str(key), *texts.values())).encode(), []))

    checked(lake, cases)
