-- As pg_dump writes it: names that must be quoted, several schemas, COPY. And values that never reach Kafka as they are.
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;

CREATE SCHEMA "Sky Survey";
CREATE SCHEMA archive;

CREATE TYPE "Sky Survey"."Band" AS ENUM ('u', 'g', 'r''', 'near infrared');
CREATE TYPE archive.site AS (hill text, height integer);
CREATE DOMAIN archive.magnitude AS numeric(6,3) CHECK (VALUE < 100);

CREATE TABLE "Sky Survey"."Star" (
    "Id" bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    "Common Name" character varying(40) DEFAULT 'unnamed',
    "Größe" archive.magnitude,
    "bands" "Sky Survey"."Band"[],
    best_band "Sky Survey"."Band" DEFAULT 'g',
    "2nd name" character(12) DEFAULT 'none',
    flux double precision,
    noise numeric,
    history numeric(8,2)[],
    first_seen date,
    drift interval,
    doubled numeric GENERATED ALWAYS AS (noise * 2) STORED
);

CREATE TABLE "Sky Survey"."Exposure 2024" (
    star bigint NOT NULL REFERENCES "Sky Survey"."Star" ("Id") ON DELETE CASCADE,
    "Taken" timestamp with time zone NOT NULL,
    shutter time without time zone,
    seconds real,
    pixels bytea,
    notes text,
    place point,
    origin archive.site,
    PRIMARY KEY ("Taken", star)
) PARTITION BY RANGE ("Taken");
CREATE TABLE "Sky Survey"."Exposure first half" PARTITION OF "Sky Survey"."Exposure 2024"
    FOR VALUES FROM ('2024-01-01 00:00:00+00') TO ('2024-07-01 00:00:00+00');
CREATE TABLE "Sky Survey"."Exposure rest" PARTITION OF "Sky Survey"."Exposure 2024" DEFAULT;

CREATE TABLE archive."Observer's log" (
    line integer,
    at timestamp without time zone,
    said text
);

CREATE TABLE archive.plate (
    code text COLLATE "C",
    side smallint,
    scanned boolean DEFAULT false NOT NULL,
    label jsonb,
    shelf inet,
    valid daterange,
    opened timestamp with time zone[],
    price money,
    nights date[],
    exposed time without time zone[],
    grid integer[],
    CONSTRAINT plate_pkey PRIMARY KEY (code, side)
);

COPY "Sky Survey"."Star" ("Id", "Common Name", "Größe", bands, best_band, "2nd name", flux, noise, history, first_seen, drift) FROM stdin;
1	Sirius	-1.460	{u,g,"r'"}	u	Dog star    	1.5e-300	0.000001	{1.00,NULL,-2.50}	1844-08-10	1 year 2 mons
2	\N	0.030	{"near infrared",NULL}	\N	\N	NaN	NaN	{NaN}	-infinity	-00:00:01.5
3	Barnard's "runaway"	9.511	{}	r'	x	Infinity	123456789012345678901234567890.5	{}	1916-05-01	\N
4	北極星	1.980	\N	near infrared	Polaris	-0	Infinity	\N	0044-03-15 BC	3 days
5		\N	{g}	g	none	\N	\N	{99999.99}	infinity	00:00:00
6	\\N\ttab	12.000	{g,g}	g	\N	42	-7	{0.00}	2024-02-29	1 mon -1 days
\.

COPY "Sky Survey"."Exposure 2024" (star, "Taken", shutter, seconds, pixels, notes, place, origin) FROM stdin;
1	2024-01-01 00:00:00+00	24:00:00	0.1	\\x00ff	first light	(1,-2.5)	(Mauna,4205)
1	2024-06-30 23:59:59.999999+00	00:00:00.000001	1e+30	\\x	\N	\N	\N
2	2024-07-01 00:00:00+00	12:30:00	\N	\N		(0,0)	(,)
3	2025-01-01 00:00:00+00	\N	3.25	\\xdeadbeef	later	\N	(Paranal,2635)
\.

COPY archive."Observer's log" (line, at, said) FROM stdin;
1	2024-01-01 20:00:00	clouds
2	2024-01-01 21:00:00	more clouds
\.

COPY archive.plate (code, side, scanned, label, shelf, valid, opened, price, nights, exposed, grid) FROM stdin;
A-1	1	t	{"sky": "clear", "moon": null}	10.0.0.1	[2020-01-01,2021-01-01)	{"2020-01-01 00:00:00+00",NULL}	$12.50	{1582-10-10,2020-01-01,infinity}	{12:30:00.123456,24:00:00}	{{1,2},{3,4}}
A-1	2	f	[]	10.0.0.0/8	empty	{}	\N	{1066-10-14}	{12:30:00.123001}	{{5,6}}
a-1	1	f	\N	::1	(,2000-01-01)	\N	-$0.01	{1492-10-12,NULL}	{00:00:00.000001}	{{7},{8}}
\.

SELECT pg_catalog.setval(pg_get_serial_sequence('"Sky Survey"."Star"', 'Id'), 6, true);
