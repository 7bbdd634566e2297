-- name: sales_by_region
-- description: Payments per region in ten-minute windows, one every five minutes; stores without a region are Unassigned.
-- keys: [region, window_start]
-- sources:
--   payment: pagila.public.payment
--   rental: pagila.public.rental
--   inventory: pagila.public.inventory
--   store: {file: stores.csv, columns: {store_id: int, region: string}}
-- refresh: incremental
-- groups: [window_start]
-- touched:
--   payment: SELECT window(payment_date, '10 minutes', '5 minutes').start AS window_start FROM payment
--   rental: |
--     SELECT window(payment.payment_date, '10 minutes', '5 minutes').start AS window_start
--     FROM rental
--     JOIN payment ON payment.rental_id = rental.rental_id
--   inventory: |
--     SELECT window(payment.payment_date, '10 minutes', '5 minutes').start AS window_start
--     FROM inventory
--     JOIN rental ON rental.inventory_id = inventory.inventory_id
--     JOIN payment ON payment.rental_id = rental.rental_id
-- window: {source: payment, time: payment_date, start: window_start, length: 10 minutes}
-- expectations:
--   - {name: paid, holds: amount >= 0}

WITH paid AS (
  SELECT
    coalesce(store.region, 'Unassigned') AS region,
    window(payment.payment_date, '10 minutes', '5 minutes') AS window,
    payment.amount
  FROM payment
  LEFT JOIN rental ON rental.rental_id = payment.rental_id
  LEFT JOIN inventory ON inventory.inventory_id = rental.inventory_id
  LEFT JOIN store ON store.store_id = inventory.store_id
)
SELECT region, window.start AS window_start, window.end AS window_end, sum(amount) AS amount, count(*) AS payments
FROM paid
GROUP BY region, window
