-- name: rentals_per_store_day
-- description: Number of rentals and customers per store and day (UTC).
-- keys: [store_id, day]
-- sources:
--   inventory: pagila.public.inventory
--   rental: pagila.public.rental
-- refresh: incremental
-- touched:
--   inventory: |
--     SELECT inventory.store_id, to_date(rental.rental_date) AS day
--     FROM inventory
--     JOIN rental ON rental.inventory_id = inventory.inventory_id
--   rental: |
--     SELECT inventory.store_id, to_date(rental.rental_date) AS day
--     FROM rental
--     JOIN inventory ON inventory.inventory_id = rental.inventory_id
-- window: {source: rental, time: rental_date, start: day, length: 1 day}

SELECT
  inventory.store_id,
  to_date(rental.rental_date) AS day,
  count(*) AS rentals,
  count(DISTINCT rental.customer_id) AS customers
FROM rental
JOIN inventory ON inventory.inventory_id = rental.inventory_id
GROUP BY inventory.store_id, to_date(rental.rental_date)
