-- A DVD rental shop in the shape of Pagila, with the column types and values that make change data capture hard.
-- Every value follows from its row's number, so that two loads are equal.

SET timezone = 'UTC';

CREATE TYPE mpaa_rating AS ENUM ('G', 'PG', 'PG-13', 'R', 'NC-17');
CREATE DOMAIN year AS integer CHECK (VALUE BETWEEN 1901 AND 2155);

CREATE FUNCTION last_updated() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN NEW.last_update = clock_timestamp(); RETURN NEW; END $$;

-- A nullable column never has a default here: Debezium's converters would send the default for every null.
CREATE TABLE language (
    language_id serial PRIMARY KEY,
    name character(20) NOT NULL,
    last_update timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE category (
    category_id serial PRIMARY KEY,
    name text NOT NULL,
    last_update timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE actor (
    actor_id serial PRIMARY KEY,
    first_name text NOT NULL,
    last_name text NOT NULL,
    last_update timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE country (
    country_id serial PRIMARY KEY,
    country text NOT NULL,
    last_update timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE city (
    city_id serial PRIMARY KEY,
    city text NOT NULL,
    country_id integer NOT NULL REFERENCES country,
    last_update timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE address (
    address_id serial PRIMARY KEY,
    address text NOT NULL,
    address2 text,
    district text NOT NULL,
    city_id integer NOT NULL REFERENCES city,
    postal_code varchar(10),
    phone text NOT NULL,
    last_update timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE store (
    store_id serial PRIMARY KEY,
    address_id integer NOT NULL REFERENCES address,
    last_update timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE film (
    film_id serial PRIMARY KEY,
    title text NOT NULL,
    description text,
    release_year year,
    language_id smallint NOT NULL REFERENCES language,
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
    store_id smallint NOT NULL REFERENCES store,
    first_name text NOT NULL,
    last_name text NOT NULL,
    email text,
    address_id integer NOT NULL REFERENCES address,
    activebool boolean NOT NULL DEFAULT true,
    create_date date NOT NULL,
    notes text,
    profile jsonb,
    last_update timestamptz NOT NULL DEFAULT now(),
    active integer
);

-- What belongs to a row follows its key and goes with it, as the shop's own changes want it.
CREATE TABLE film_actor (
    actor_id integer REFERENCES actor ON UPDATE CASCADE ON DELETE CASCADE,
    film_id integer REFERENCES film ON UPDATE CASCADE ON DELETE CASCADE,
    last_update timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (actor_id, film_id)
);
CREATE TABLE film_category (
    film_id integer REFERENCES film ON UPDATE CASCADE ON DELETE CASCADE,
    category_id integer REFERENCES category,
    last_update timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (film_id, category_id)
);
CREATE TABLE inventory (
    inventory_id serial PRIMARY KEY,
    film_id integer NOT NULL REFERENCES film ON UPDATE CASCADE ON DELETE CASCADE,
    store_id integer NOT NULL REFERENCES store,
    last_update timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE rental (
    rental_id serial PRIMARY KEY,
    rental_date timestamptz NOT NULL,
    inventory_id integer NOT NULL REFERENCES inventory ON UPDATE CASCADE ON DELETE CASCADE,
    customer_id integer NOT NULL REFERENCES customer ON UPDATE CASCADE ON DELETE CASCADE,
    return_date timestamptz,
    last_update timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE payment (
    payment_id serial,
    customer_id integer NOT NULL REFERENCES customer ON UPDATE CASCADE ON DELETE CASCADE,
    rental_id integer NOT NULL REFERENCES rental ON UPDATE CASCADE ON DELETE CASCADE,
    amount numeric(5,2) NOT NULL,
    payment_date timestamptz NOT NULL,
    PRIMARY KEY (payment_date, payment_id)
) PARTITION BY RANGE (payment_date);

DO $$ BEGIN
    FOR month IN 2..10 LOOP
        EXECUTE format('CREATE TABLE payment_p2022_%s PARTITION OF payment FOR VALUES FROM (%L) TO (%L)',
                       lpad(month::text, 2, '0'), make_date(2022, month, 1), make_date(2022, month + 1, 1));
    END LOOP;
END $$;

CREATE INDEX ON film_actor (film_id);
CREATE INDEX ON inventory (film_id);
CREATE INDEX ON rental (inventory_id);
CREATE INDEX ON rental (customer_id);
CREATE INDEX ON payment (customer_id);
CREATE INDEX ON payment (rental_id);

-- Debezium takes its orders from this table, and writes the windows of an incremental snapshot into it.
CREATE TABLE debezium_signal (id varchar(42) PRIMARY KEY, type varchar(32) NOT NULL, data varchar(2048));

-- Out of line and uncompressed, so that an update which leaves these columns alone does not carry them.
ALTER TABLE film ALTER description SET STORAGE EXTERNAL, ALTER poster SET STORAGE EXTERNAL;
ALTER TABLE customer ALTER notes SET STORAGE EXTERNAL, ALTER profile SET STORAGE EXTERNAL;

CREATE TRIGGER film_fulltext BEFORE INSERT OR UPDATE ON film FOR EACH ROW
    EXECUTE FUNCTION tsvector_update_trigger(fulltext, 'pg_catalog.english', title, description);
DO $$ DECLARE name text; BEGIN
    FOREACH name IN ARRAY '{language,category,actor,country,city,address,store,film,customer,film_actor,film_category,
                            inventory,rental}'::text[] LOOP
        EXECUTE format('CREATE TRIGGER last_updated BEFORE UPDATE ON %I FOR EACH ROW EXECUTE FUNCTION last_updated()', name);
    END LOOP;
END $$;

-- `dice` throws a number from 0 to sides - 1, the same for the same row and column; `wide` is text that does not compress.
CREATE FUNCTION pg_temp.dice(n bigint, of_column text, sides int) RETURNS int LANGUAGE sql IMMUTABLE AS
$$ SELECT ('x' || left(md5(of_column || n), 7))::bit(28)::int % sides $$;
CREATE FUNCTION pg_temp.wide(n bigint, words int) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT string_agg(md5(n || '/' || i), ' ' ORDER BY i) FROM generate_series(1, words) AS i $$;

-- `rows` is the number of rows of a large table: all of them, or one in `demo.one_in`.
CREATE FUNCTION pg_temp.rows(of_all int) RETURNS int LANGUAGE sql STABLE AS
$$ SELECT of_all / coalesce(nullif(current_setting('demo.one_in', true), '')::int, 1) $$;

-- `moment` is another one for each row and column, some time before the rentals.
CREATE FUNCTION pg_temp.moment(n bigint, of_column text) RETURNS timestamptz LANGUAGE sql IMMUTABLE AS
$$ SELECT timestamptz '1990-01-01 00:00:00+00' + pg_temp.dice(n, of_column, 11000) * interval '1 day'
       + (pg_temp.dice(n, of_column || ' micros', 86400000)::bigint * 1000 + n % 1000) * interval '1 microsecond' $$;

INSERT INTO language (name, last_update)
SELECT name, pg_temp.moment(n, 'language')
FROM unnest('{English,Italian,日本語,Français,Deutsch,العربية}'::text[]) WITH ORDINALITY AS l(name, n);
INSERT INTO category (name, last_update)
SELECT name, pg_temp.moment(n, 'category')
FROM unnest('{Action,Animation,Children,Classics,Comedy,Documentary,Drama,Family,Foreign,Games,Horror,Music,New,Sci-Fi,
              Sports,Travel}'::text[]) WITH ORDINALITY AS c(name, n);
INSERT INTO actor (first_name, last_name, last_update)
SELECT (ARRAY['PENELOPE', 'Zoë', 'Ed', 'JENNIFER', '健', 'Øystein', 'Uma', 'Bob'])[1 + pg_temp.dice(n, 'actor first', 8)],
    (ARRAY['GUINESS', 'O''Hara', 'Müller', 'DAVIS', '渡辺', 'van der Berg', 'Swank'])[1 + pg_temp.dice(n, 'actor last', 7)],
    pg_temp.moment(n, 'actor')
FROM generate_series(1, 200) AS n;
INSERT INTO country (country, last_update)
SELECT name, pg_temp.moment(n, 'country')
FROM unnest('{Argentina,Australia,Brazil,Canada,Chile,China,Côte d''Ivoire,Denmark,Egypt,France,Germany,India,Indonesia,Iran,
              Italy,Japan,Kenya,Mexico,Morocco,Nigeria,Poland,South Korea,Türkiye,Ukraine,United States}'::text[])
     WITH ORDINALITY AS c(name, n);
INSERT INTO city (city, country_id, last_update)
SELECT (ARRAY['Nord', 'Alt', 'New ', 'San ', 'Kita', 'Øster'])[1 + pg_temp.dice(n, 'city first', 6)]
        || (ARRAY['haven', 'dorf', 'York', 'Juan', 'mura', 'bro'])[1 + pg_temp.dice(n, 'city last', 6)] || ' ' || n,
    1 + pg_temp.dice(n, 'city country', 25), pg_temp.moment(n, 'city')
FROM generate_series(1, 300) AS n;
INSERT INTO address (address, address2, district, city_id, postal_code, phone, last_update)
SELECT 1 + pg_temp.dice(n, 'house', 1900) || ' '
        || (ARRAY['Hanoi Way', 'Rue de l''Église', '本町', 'Ringstraße'])[1 + n % 4],
    CASE n % 5 WHEN 0 THEN '' WHEN 1 THEN 'flat ' || n END,
    'District ' || pg_temp.dice(n, 'district', 90), 1 + pg_temp.dice(n, 'address city', 300),
    CASE WHEN n % 7 > 0 THEN lpad(pg_temp.dice(n, 'postal code', 100000)::text, 5, '0') END,
    pg_temp.dice(n, 'phone', 100000000)::text, pg_temp.moment(n, 'address')
FROM generate_series(1, 602) AS n;
INSERT INTO store (address_id, last_update) VALUES (1, pg_temp.moment(1, 'store')), (2, pg_temp.moment(2, 'store'));

-- The edges of every type first.
INSERT INTO film (title, description, release_year, language_id, rental_duration, rental_rate, length, replacement_cost,
                  rating, premiere, shown_at, special_features, attributes, poster, ext_id, last_update) VALUES
    ('ACADEMY DINOSAUR', 'An Epic Drama of a Feminist And a Mad Scientist', 2006, 1, 6, 0.99, 86, 20.99,
     'PG', '2006-01-15', '2006-01-15 20:15:00', '{"Deleted Scenes","Behind the Scenes"}', '{"a": 1}',
     '\x00ff10', 'b68a35a7-17ad-35b3-af2a-ae46edb4545a', '2022-09-10 16:46:03.905795+00'),
    ('', '', 1901, 6, -32768, -99.99, -32768, -999.99,
     'G', '1905-01-01', '1905-01-01 00:00:00', '{}', '{}',
     '\x', '00000000-0000-0000-0000-000000000000', '1905-12-31 23:59:59.999999+00'),
    ('  padded with spaces  ', NULL, 2155, 3, 32767, 99.99, 32767, 999.99,
     'NC-17', '9999-12-31', '9999-12-31 00:00:00', '{NULL}', 'null',
     '\x00', 'ffffffff-ffff-ffff-ffff-ffffffffffff', '9999-12-31 00:00:00+00'),
    ('O''Brien says "no" \ ; -- and /* leaves */', E'tab\tline\nreturn\rbell\x07', NULL, 2, 0, 0.00, 0, 0.00,
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
    pg_temp.moment(n, 'updated')
FROM generate_series(9, pg_temp.rows(1000)) AS n;

INSERT INTO customer (store_id, first_name, last_name, email, activebool, create_date, notes, profile, address_id,
                      last_update, active)
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
    n + 2,
    pg_temp.moment(n, 'updated'),
    CASE WHEN n % 10 > 0 THEN pg_temp.dice(n, 'active', 3) - 1 END
FROM generate_series(1, pg_temp.rows(600)) AS n;

INSERT INTO film_actor (actor_id, film_id, last_update)
SELECT actor_id, film_id, pg_temp.moment(film_id * 1000 + actor_id, 'film_actor')
FROM (SELECT DISTINCT 1 + pg_temp.dice(film_id * 10 + place, 'cast', 200) AS actor_id, film_id
      FROM generate_series(1, pg_temp.rows(1000)) AS film_id, generate_series(1, 9) AS place
      WHERE place <= 2 + pg_temp.dice(film_id, 'cast size', 8)) AS parts;
INSERT INTO film_category (film_id, category_id, last_update)
SELECT n, 1 + pg_temp.dice(n, 'film category', 16), pg_temp.moment(n, 'film_category')
FROM generate_series(1, pg_temp.rows(1000)) AS n;
INSERT INTO inventory (film_id, store_id, last_update)
SELECT 1 + pg_temp.dice(n, 'stock', pg_temp.rows(1000)), 1 + n % 2, pg_temp.moment(n, 'inventory')
FROM generate_series(1, pg_temp.rows(4500)) AS n;
INSERT INTO rental (rental_date, inventory_id, customer_id, return_date, last_update)
SELECT at, 1 + pg_temp.dice(n, 'rented item', pg_temp.rows(4500)), 1 + pg_temp.dice(n, 'rented by', pg_temp.rows(600)),
    CASE WHEN n % 100 > 0 AND n <= 15800 THEN at + (1 + pg_temp.dice(n, 'kept', 200)) * interval '61 minutes' END,
    at + interval '1 microsecond' * pg_temp.dice(n, 'rental micros', 1000000)
FROM (SELECT n, timestamptz '2022-02-01 00:00:00+00' + n * interval '16 minutes'
                    + pg_temp.dice(n, 'when', 900) * interval '1 second' AS at
      FROM generate_series(1, pg_temp.rows(16000)) AS n) AS rentals
ORDER BY n;
INSERT INTO payment (customer_id, rental_id, amount, payment_date)
SELECT customer_id, rental_id, pg_temp.dice(rental_id, 'amount', 12) + 0.99,
    rental_date + pg_temp.dice(rental_id, 'paid after', 3600) * interval '1001 milliseconds'
FROM rental WHERE rental_id % 50 > 0
ORDER BY rental_id;
