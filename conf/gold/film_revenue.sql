-- name: film_revenue
-- description: Revenue of each film in each of its categories; 0 for films without payments.
-- keys: [film_id, category]
-- sources:
--   film: pagila.public.film
--   film_category: pagila.public.film_category
--   category: pagila.public.category
--   inventory: pagila.public.inventory
--   rental: pagila.public.rental
--   payment: pagila.public.payment
-- refresh: incremental
-- groups: [film_id]
-- touched:
--   film: SELECT film_id FROM film
--   film_category: SELECT film_id FROM film_category
--   category: SELECT film_id FROM category JOIN film_category ON film_category.category_id = category.category_id
--   inventory: SELECT film_id FROM inventory
--   rental: SELECT film_id FROM rental JOIN inventory ON inventory.inventory_id = rental.inventory_id
--   payment: |
--     SELECT inventory.film_id
--     FROM payment
--     JOIN rental ON rental.rental_id = payment.rental_id
--     JOIN inventory ON inventory.inventory_id = rental.inventory_id

WITH paid AS (
  SELECT inventory.film_id, count(DISTINCT rental.rental_id) AS paid_rentals, sum(payment.amount) AS revenue
  FROM payment
  JOIN rental ON rental.rental_id = payment.rental_id
  JOIN inventory ON inventory.inventory_id = rental.inventory_id
  GROUP BY inventory.film_id
),
categories AS (
  SELECT DISTINCT film_category.film_id, category.name AS category
  FROM film_category
  JOIN category ON category.category_id = film_category.category_id
)
SELECT
  film.film_id,
  film.title,
  coalesce(categories.category, '(none)') AS category,
  coalesce(paid.paid_rentals, 0) AS paid_rentals,
  coalesce(paid.revenue, 0) AS revenue
FROM film
LEFT JOIN categories ON categories.film_id = film.film_id
LEFT JOIN paid ON paid.film_id = film.film_id
