"""The tables of every recording, and the changes of their rows."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

Shape = Literal["envelope", "flattened"]
TABLES: Final = ("public.item", "public.label")


@dataclass(frozen=True)
class Change:
    """SQL of one transaction, and the records that it causes.

    Args:
        names: what each record is called, in an envelope's stream; a flattened one has no tombstones and no truncates.
        table: whose topic they arrive in.
    """

    sql: str
    names: Sequence[str]
    table: str = "item"

    def arriving(self, shape: Shape) -> list[str]:
        """The names of the records that arrive."""
        return [name for name in self.names if shape == "envelope" or name.split()[-1] not in ("tombstone", "truncate")]


_LARGE: Final = {"note": "n" * 700, "details": json.dumps({"text": "d" * 600}), "picture": "ff" * 500, "tag": "t" * 200}
TABLES_SQL: Final = """
CREATE TYPE item_kind AS ENUM ('part', 'tool');
CREATE TABLE item (
    id integer PRIMARY KEY,
    name text NOT NULL,
    kind item_kind NOT NULL DEFAULT 'part',
    price numeric(6, 2) NOT NULL DEFAULT 4.99,
    discount numeric(4, 3),
    weight numeric,
    stock smallint NOT NULL DEFAULT 3,
    sold bigint,
    ratio double precision,
    is_new boolean NOT NULL DEFAULT true,
    made_on date,
    packed_at timestamp,
    checked_at timestamp(3),
    seen_at timestamptz NOT NULL DEFAULT now(),
    opens_at time,
    code uuid,
    note text,
    details jsonb,
    picture bytea,
    tags text[]
);
-- What is too large for the row is stored apart as it is, and is not in the log of an update that leaves it alone.
ALTER TABLE item ALTER note SET STORAGE EXTERNAL, ALTER details SET STORAGE EXTERNAL,
    ALTER picture SET STORAGE EXTERNAL, ALTER tags SET STORAGE EXTERNAL, SET (toast_tuple_target = 128);
-- The log of a delete has only the key; what Debezium puts into columns that have no null and no default is seen here.
CREATE TABLE label (
    item_id integer,
    language text,
    text text NOT NULL,
    kind item_kind NOT NULL,
    fee numeric(6, 2) NOT NULL,
    weight numeric NOT NULL,
    copies smallint NOT NULL,
    views bigint NOT NULL,
    share real NOT NULL,
    rate double precision NOT NULL,
    is_old boolean NOT NULL,
    printed_on date NOT NULL,
    printed_at timestamp NOT NULL,
    seen_at timestamptz NOT NULL,
    opens_at time NOT NULL,
    code uuid NOT NULL,
    details jsonb NOT NULL,
    picture bytea NOT NULL,
    words text[] NOT NULL,
    PRIMARY KEY (item_id, language)
);
"""
SNAPSHOT: Final = (
    Change(
        f"""INSERT INTO item VALUES (1, 'large', 'tool', 10.00, 0.125, 1.5, 1, 1, 0.5, false, '2026-01-31',
        '2026-01-31 12:34:56.123456', '2026-01-31 12:34:56.123', '2026-01-31 12:34:56.123456+00', '23:59:59.999999',
        '6ba7b810-9dad-11d1-80b4-00c04fd430c8', '{_LARGE["note"]}', '{_LARGE["details"]}', '\\x{_LARGE["picture"]}',
        ARRAY['{_LARGE["tag"]}', '{_LARGE["tag"]}'])""",
        ["snapshot of a large row"],
    ),
    Change(
        "INSERT INTO item (id, name, seen_at) VALUES (2, 'nulls', '1969-12-31 23:59:59.999999+00')",
        ["snapshot of a row of nulls"],
    ),
    Change(
        """INSERT INTO label VALUES (1, 'en', 'large', 'tool', 0.01, 1, 1, 1, 0.5, 0.5, true, '2026-01-31',
        '2026-01-31', '2026-01-31 00:00+00', '12:00', '6ba7b810-9dad-11d1-80b4-00c04fd430c8', '1', '\\x01',
        '{large,great}')""",
        ["snapshot"],
        "label",
    ),
)
STORY: Final = (
    Change(
        """INSERT INTO item VALUES (3, 'æøå 東京 🎬', 'part', -0.01, -9.999, -12345678901234567890.123456789, -32768,
        -9223372036854775808, -0.25, true, '1969-12-31', '1969-12-31 23:59:59.999999', '1969-12-31 23:59:59.999',
        '2026-01-31 12:34:56+02', '00:00', '00000000-0000-0000-0000-000000000000', '', '{"b": [1, null], "a": "é"}',
        '\\x00ff80', ARRAY['a', NULL, 'ü'])""",
        ["insert"],
    ),
    Change("UPDATE item SET price = 9999.99, weight = 0, tags = '{}' WHERE id = 3", ["update"]),
    Change(
        "UPDATE item SET stock = 4 WHERE id = 2; UPDATE item SET stock = 5 WHERE id = 2",
        ["first update of two in a transaction", "second update of two in a transaction"],
    ),
    Change("UPDATE item SET name = 'large still' WHERE id = 1", ["update that leaves large values alone"]),
    Change(
        "UPDATE item SET id = 4 WHERE id = 3", ["key change, delete", "key change, tombstone", "key change, create"]
    ),
    Change(
        """INSERT INTO label VALUES (2, 'de', '', 'part', -0.01, 0, -1, -1, -0.5, -0.5, false, '1970-01-01',
        '1970-01-01', '1970-01-01 00:00+00', '00:00', '00000000-0000-0000-0000-000000000000', 'null', '', '{}')""",
        ["insert"],
        "label",
    ),
    Change("DELETE FROM label WHERE item_id = 1", ["delete", "tombstone"], "label"),
    Change("ALTER TABLE item ADD COLUMN colour text DEFAULT 'none'", []),
    Change(
        "INSERT INTO item (id, name, seen_at, colour) VALUES (5, 'after ADD COLUMN', '2026-02-28 00:00+00', 'blue')",
        ["insert with an added column"],
    ),
    Change("UPDATE item SET sold = 5000000000 WHERE id = 2", ["update with an added column"]),
    Change("DELETE FROM item WHERE id = 2", ["delete", "tombstone"]),
    Change("TRUNCATE item", ["truncate"]),
    Change(
        "INSERT INTO item (id, name, seen_at) VALUES (6, 'after', '2026-03-31 00:00+00')",
        ["insert into the emptied table"],
    ),
)
