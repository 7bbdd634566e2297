-- By hand, as `pg_dump --create` and `pg_dumpall` write: its own database and owner, schemas and extensions that exist or not.
\restrict 0aBcDeF
SET statement_timeout = 0;
SET client_encoding = 'UTF8';
SET transaction_timeout = 0;
DROP DATABASE IF EXISTS mill;
CREATE DATABASE mill WITH TEMPLATE = template0 ENCODING = 'UTF8' LOCALE_PROVIDER = libc LOCALE = 'tlh_KX.UTF-8';
ALTER DATABASE mill OWNER TO miller;
\unrestrict 0aBcDeF
\connect mill
\restrict 0aBcDeF

CREATE SCHEMA public;
ALTER SCHEMA public OWNER TO miller;
CREATE EXTENSION plpgsql WITH SCHEMA pg_catalog;
CREATE EXTENSION IF NOT EXISTS citext WITH SCHEMA public;
CREATE EXTENSION IF NOT EXISTS hstore WITH SCHEMA public;

CREATE TABLE public.sack (id integer NOT NULL, text text);
ALTER TABLE public.sack OWNER TO miller;
CREATE TABLE public.farmer (id integer NOT NULL, name public.citext);
ALTER TABLE public.farmer OWNER TO miller;

COPY public.farmer (id, name) FROM stdin;
1	it's a name that would open a literal
2	\N
\.

COPY public.sack (id, text) FROM stdin;
1	DROP TABLE public.sack;
2	\\connect elsewhere
3	\N
\.

INSERT INTO public.sack VALUES (4, 'two lines
\connect elsewhere');
ALTER TABLE ONLY public.sack ADD CONSTRAINT sack_pkey PRIMARY KEY (id);
GRANT SELECT ON public.sack TO miller;
\unrestrict 0aBcDeF
