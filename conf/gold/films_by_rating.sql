-- name: films_by_rating
-- description: Each film with what it costs to rent, in a partition for each rating.
-- keys: [film_id]
-- sources:
--   film: pagila.public.film
-- refresh: incremental
-- touched:
--   film: SELECT film_id FROM film
-- table: {partition_by: [rating]}

SELECT film_id, title, rating, rental_rate, replacement_cost
FROM film
