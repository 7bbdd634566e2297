-- name: films_by_rating
-- description: Rental price of each film, partitioned by rating.
-- keys: [film_id]
-- sources:
--   film: pagila.public.film
-- refresh: incremental
-- touched:
--   film: SELECT film_id FROM film
-- table: {partition_by: [rating]}

SELECT film_id, title, rating, rental_rate, replacement_cost
FROM film
