-- name: films_per_rating
-- description: Number of films and their average rental price, per rating.
-- keys: [rating]
-- sources:
--   film: pagila.public.film

SELECT coalesce(rating, '(none)') AS rating, count(*) AS films, round(avg(rental_rate), 2) AS rental_rate
FROM film
GROUP BY coalesce(rating, '(none)')
