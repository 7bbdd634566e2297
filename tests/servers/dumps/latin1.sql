-- By hand, in Latin-1, without a word about it.
CREATE TABLE bakery (id int PRIMARY KEY, name text);
INSERT INTO bakery VALUES (1, 'Bäckerei Müßig');
COPY bakery FROM stdin;
2	Crêperie
\.
