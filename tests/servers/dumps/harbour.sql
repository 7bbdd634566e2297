-- Written by hand, loaded by INSERTs: natural keys, a tree, foreign keys in a circle, hash partitions, keys of many types.
CREATE SCHEMA customs;

CREATE TABLE "Port" (
    unlocode char(5) PRIMARY KEY,
    name varchar(60) NOT NULL UNIQUE,
    depth_m numeric(4,1) NOT NULL DEFAULT 10.5,
    twin char(5) REFERENCES "Port" DEFERRABLE INITIALLY DEFERRED,
    languages text[] NOT NULL DEFAULT '{}',
    opened date
);
CREATE TABLE "Ship" (
    imo uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    "Name" text NOT NULL,
    "home-port" char(5) NOT NULL REFERENCES "Port" ON UPDATE CASCADE,
    tonnage integer CHECK (tonnage > 0),
    afloat boolean NOT NULL DEFAULT true,
    story text
);
CREATE TABLE "Call" (
    ship uuid REFERENCES "Ship" ON DELETE CASCADE,
    port char(5) REFERENCES "Port" ON UPDATE CASCADE,
    "from" timestamp,
    "to" timestamp,
    draught real,
    pilots int[] ,
    PRIMARY KEY (port, ship, "from")
) PARTITION BY HASH (port, ship, "from");
CREATE TABLE call_0 PARTITION OF "Call" FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE call_1 PARTITION OF "Call" FOR VALUES WITH (MODULUS 2, REMAINDER 1);

CREATE TABLE customs."Declaration.v2" (
    year smallint,
    number bigint,
    parent_year smallint,
    parent_number bigint,
    weight numeric,
    goods jsonb,
    sealed bytea,
    cleared timestamptz,
    PRIMARY KEY (year, number),
    FOREIGN KEY (parent_year, parent_number) REFERENCES customs."Declaration.v2"
);
CREATE UNLOGGED TABLE customs.scratch (id int PRIMARY KEY);
CREATE TABLE customs.empty (id date PRIMARY KEY, remark text);

INSERT INTO "Port" (unlocode, name, depth_m, twin, languages, opened) VALUES
    ('DKCPH', 'København', 14.0, 'JPTYO', '{dansk,"engelsk, lidt"}', '1654-01-01'),
    ('JPTYO', '東京', 18.5, 'DKCPH', '{日本語}', '1941-05-20'),
    ('NLRTM', 'Rotterdam', 24.0, NULL, '{}', NULL),
    ('X  1', 'short code', 0.1, NULL, '{NULL}', '0001-01-01');
INSERT INTO "Ship" SELECT md5('ship' || n)::uuid, 'Ship "' || n || '"', (ARRAY['DKCPH', 'JPTYO', 'NLRTM'])[1 + n % 3],
    CASE WHEN n % 4 > 0 THEN n * 1000 END, n % 5 > 0,
    CASE WHEN n % 2 = 0 THEN (SELECT string_agg(md5(n || '/' || i), ' ') FROM generate_series(1, 120) AS i) END
FROM generate_series(1, 60) AS n;
INSERT INTO "Call" SELECT imo, (ARRAY['DKCPH', 'JPTYO', 'NLRTM', 'X  1'])[1 + n % 4],
    timestamp '2024-01-01' + n * interval '7 hours 0.000123 seconds', timestamp '2024-01-03' + n * interval '8 hours',
    n / 10.0, ARRAY[n, NULL, -n]
FROM (SELECT imo, row_number() OVER (ORDER BY imo)::int AS n FROM "Ship") AS ships;
INSERT INTO customs."Declaration.v2" SELECT 2020 + n % 4, n, CASE WHEN n > 8 THEN 2020 + n % 4 END,
    CASE WHEN n > 8 THEN n - 8 END, n * 1.10, jsonb_build_object('boxes', n, 'of', ARRAY['tea', NULL]),
    decode(repeat(md5(n::text), 3), 'hex'), timestamptz '2024-03-31 01:30:00+00' + n * interval '1 minute'
FROM generate_series(1, 80) AS n;
ALTER TABLE "Ship" ALTER story SET STORAGE EXTERNAL;
UPDATE "Ship" SET story = story || '' WHERE story IS NOT NULL;
