-- Pagila in small: two tables with the column types that make change data capture hard.
-- Every value follows from its row's number, so that two loads are equal; only last_update is set by the clock.

SET timezone = 'UTC';

CREATE TYPE mpaa_rating AS ENUM ('G', 'PG', 'PG-13', 'R', 'NC-17');
CREATE DOMAIN year AS integer CHECK (VALUE BETWEEN 1901 AND 2155);

CREATE FUNCTION last_updated() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN NEW.last_update = clock_timestamp(); RETURN NEW; END $$;

-- A nullable column never has a default here: Debezium's converters would send the default for every null.
CREATE TABLE film (
    film_id serial PRIMARY KEY,
    title text NOT NULL,
    description text,
    release_year year,
    language_id smallint NOT NULL,
    rental_duration smallint NOT NULL DEFAULT 3,
    rental_rate numeric(4,2) NOT NULL DEFAULT 4.99,
    length smallint,
    replacement_cost numeric(5,2),
    rating mpaa_rating,
    premiere date,
    shown_at timestamp,
    special_features text[],
    fulltext tsvector NOT NULL,
    attributes jsonb,
    poster bytea,
    ext_id uuid,
    last_update timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE customer (
    customer_id serial PRIMARY KEY,
    store_id smallint NOT NULL,
    first_name text NOT NULL,
    last_name text NOT NULL,
    email text,
    activebool boolean NOT NULL DEFAULT true,
    create_date date NOT NULL,
    notes text,
    profile jsonb,
    last_update timestamptz NOT NULL DEFAULT now(),
    active integer
);

-- Out of line and uncompressed, so that an update which leaves these columns alone does not carry them.
ALTER TABLE film ALTER description SET STORAGE EXTERNAL, ALTER poster SET STORAGE EXTERNAL;
ALTER TABLE customer ALTER notes SET STORAGE EXTERNAL, ALTER profile SET STORAGE EXTERNAL;

CREATE TRIGGER film_fulltext BEFORE INSERT OR UPDATE ON film FOR EACH ROW
    EXECUTE FUNCTION tsvector_update_trigger(fulltext, 'pg_catalog.english', title, description);
CREATE TRIGGER film_last_updated BEFORE UPDATE ON film FOR EACH ROW EXECUTE FUNCTION last_updated();
CREATE TRIGGER customer_last_updated BEFORE UPDATE ON customer FOR EACH ROW EXECUTE FUNCTION last_updated();

-- `dice` throws a number from 0 to sides - 1, the same for the same row and column; `wide` is text that does not compress.
CREATE FUNCTION pg_temp.dice(n bigint, of_column text, sides int) RETURNS int LANGUAGE sql IMMUTABLE AS
$$ SELECT ('x' || left(md5(of_column || n), 7))::bit(28)::int % sides $$;
CREATE FUNCTION pg_temp.wide(n bigint, words int) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT string_agg(md5(n || '/' || i), ' ' ORDER BY i) FROM generate_series(1, words) AS i $$;

-- The edges of every type first.
INSERT INTO film (title, description, release_year, language_id, rental_duration, rental_rate, length, replacement_cost,
                  rating, premiere, shown_at, special_features, attributes, poster, ext_id, last_update) VALUES
    ('ACADEMY DINOSAUR', 'An Epic Drama of a Feminist And a Mad Scientist', 2006, 1, 6, 0.99, 86, 20.99,
     'PG', '2006-01-15', '2006-01-15 20:15:00', '{"Deleted Scenes","Behind the Scenes"}', '{"a": 1}',
     '\x00ff10', 'b68a35a7-17ad-35b3-af2a-ae46edb4545a', '2022-09-10 16:46:03.905795+00'),
    ('', '', 1901, -32768, -32768, -99.99, -32768, -999.99,
     'G', '1905-01-01', '1905-01-01 00:00:00', '{}', '{}',
     '\x', '00000000-0000-0000-0000-000000000000', '1905-12-31 23:59:59.999999+00'),
    ('  padded with spaces  ', NULL, 2155, 32767, 32767, 99.99, 32767, 999.99,
     'NC-17', '9999-12-31', '9999-12-31 00:00:00', '{NULL}', 'null',
     '\x00', 'ffffffff-ffff-ffff-ffff-ffffffffffff', '9999-12-31 00:00:00+00'),
    ('O''Brien says "no" \ ; -- and /* leaves */', E'tab\tline\nreturn\rbell\x07', NULL, 0, 0, 0.00, 0, 0.00,
     NULL, '1905-03-01', '1905-03-01 00:00:00.000001', '{"",NULL,"a,b","{c}","\"d\"","NULL"}',
     '{"quote": "\"", "back": "\\", "empty": "", "none": null}', '\xdeadbeef', NULL, '1969-12-31 23:59:59.999999+00'),
    ('Ærøskøbing 東京 🎬 é é ẞ', 'عربى עברית ไทย', 2024, 1, 3, 4.99, NULL, NULL,
     'PG-13', '2024-02-29', '2000-02-29 23:59:59.5', '{"東京","🎬"}',
     '{"text": "東京 🎬", "big": 12345678901234567890.12345, "small": 1e-7, "true": true, "deep": [[{}, []]]}',
     NULL, '6ba7b810-9dad-11d1-80b4-00c04fd430c8', '1970-01-01 00:00:00+00'),
    ('all nulls', NULL, NULL, 1, 3, 4.99, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '1905-01-01 12:00:00+00'),
    ('scalars', NULL, NULL, 1, 3, 0.01, NULL, 0.01, 'R', '1970-01-01', '1970-01-01 00:00:00', '{NULL,NULL}', '"text"',
     NULL, NULL, '2024-03-31 01:30:00.000001+00'),
    ('everything wide', pg_temp.wide(8, 200), 2000, 1, 3, -0.01, 1, -0.01, 'R', '1999-12-31', '1969-12-31 23:59:59.999999',
     string_to_array(pg_temp.wide(80, 150), ' '), jsonb_build_object('wide', pg_temp.wide(81, 150)),
     decode(replace(pg_temp.wide(82, 150), ' ', ''), 'hex'), NULL, '2024-02-29 12:00:00+00');

INSERT INTO film (title, description, release_year, language_id, rental_duration, rental_rate, length, replacement_cost,
                  rating, premiere, shown_at, special_features, attributes, poster, ext_id, last_update)
SELECT
    (ARRAY['ACE', 'Adaptation', 'affair', 'ÅNGSTRÖM', 'Łódź', 'Б''рат', '東京'])[1 + pg_temp.dice(n, 'first', 7)]
        || ' ' || (ARRAY['GOLDFINGER', 'Holes', 'prejudice', '"Egg"', ''])[1 + pg_temp.dice(n, 'second', 5)] || ' ' || n,
    CASE WHEN n % 3 = 0 THEN pg_temp.wide(n, 90 + n % 60)
         WHEN n % 7 = 1 THEN NULL
         WHEN n % 11 = 1 THEN ''
         ELSE 'A tale of number ' || n || ', told in ' || md5(n::text) END,
    CASE WHEN n % 13 > 0 THEN 1901 + pg_temp.dice(n, 'year', 255) END,
    1 + pg_temp.dice(n, 'language', 6),
    3 + pg_temp.dice(n, 'duration', 5),
    pg_temp.dice(n, 'rate', 20000) / 100.0 - 99.99,
    CASE WHEN n % 8 > 0 THEN 40 + pg_temp.dice(n, 'length', 150) END,
    CASE WHEN n % 9 > 0 THEN pg_temp.dice(n, 'cost', 200000) / 100.0 - 999.99 END,
    (enum_range(NULL::mpaa_rating) || NULL::mpaa_rating)[1 + pg_temp.dice(n, 'rating', 6)],
    CASE WHEN n % 10 > 0 THEN date '1905-01-01' + pg_temp.dice(n, 'premiere', 50000) END,
    CASE WHEN n % 10 > 1 THEN timestamp '1905-01-01' + pg_temp.dice(n, 'day', 50000) * interval '1 day'
         + (pg_temp.dice(n, 'micros', 86400000)::bigint * 1000 + n % 1000) * interval '1 microsecond' END,
    CASE WHEN n % 20 = 3 THEN string_to_array(pg_temp.wide(n, 120), ' ')
         WHEN n % 6 = 0 THEN NULL
         WHEN n % 6 = 1 THEN '{}'
         WHEN n % 6 = 2 THEN ARRAY['Trailers', NULL]
         WHEN n % 6 = 3 THEN ARRAY[NULL, '', 'it''s "quoted", {braced}']
         ELSE ARRAY['Commentaries', 'Deleted Scenes ' || n] END,
    CASE WHEN n % 20 = 4 THEN jsonb_build_object('wide', pg_temp.wide(n, 120), 'n', n)
         WHEN n % 5 > 0 THEN jsonb_build_object('n', n, 'ratio', n / 8.0, 'tags', jsonb_build_array(md5(n::text), NULL, true),
                                                'ü', jsonb_build_object('empty', '')) END,
    CASE WHEN n % 20 = 9 THEN decode(replace(pg_temp.wide(n, 130), ' ', ''), 'hex')
         WHEN n % 4 > 0 THEN decode(md5(n::text) || '00ff', 'hex') END,
    CASE WHEN n % 6 > 0 THEN md5('film' || n)::uuid END,
    timestamptz '1990-01-01 00:00:00+00' + pg_temp.dice(n, 'updated', 12000) * interval '1 day'
        + (pg_temp.dice(n, 'updated micros', 86400000)::bigint * 1000 + n % 1000) * interval '1 microsecond'
FROM generate_series(9, 1000) AS n;

INSERT INTO customer (store_id, first_name, last_name, email, activebool, create_date, notes, profile, last_update, active)
SELECT
    1 + pg_temp.dice(n, 'store', 2),
    (ARRAY['MARY', 'Zoë', 'O''Neil', 'José', '美咲', ''])[1 + pg_temp.dice(n, 'first', 6)],
    'Name ' || n || repeat(' ', n % 3),
    CASE WHEN n % 12 = 0 THEN NULL WHEN n % 12 = 1 THEN '' ELSE 'customer.' || n || '@example.org' END,
    n % 4 > 0,
    date '1905-01-01' + pg_temp.dice(n, 'created', 45000),
    CASE WHEN n % 2 = 0 THEN pg_temp.wide(n, 100 + n % 80) WHEN n % 5 = 0 THEN '' WHEN n % 7 > 0 THEN 'note ' || n END,
    CASE WHEN n % 9 = 0 THEN jsonb_build_object('wide', pg_temp.wide(-n, 120), 'n', n)
         WHEN n % 9 > 1 THEN jsonb_build_object('n', -n, 'name', '"' || n || '"', 'list', jsonb_build_array(1.50, NULL)) END,
    timestamptz '1990-01-01 00:00:00+00' + pg_temp.dice(n, 'updated', 12000) * interval '1 day'
        + (pg_temp.dice(n, 'updated micros', 86400000)::bigint * 1000 + n % 1000) * interval '1 microsecond',
    CASE WHEN n % 10 > 0 THEN pg_temp.dice(n, 'active', 3) - 1 END
FROM generate_series(1, 600) AS n;
