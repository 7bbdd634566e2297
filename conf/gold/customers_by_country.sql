-- name: customers_by_country
-- description: Number of customers per country, for countries with customers.
-- keys: [country_id]
-- sources:
--   customer: pagila.public.customer
--   address: pagila.public.address
--   city: pagila.public.city
--   country: pagila.public.country

SELECT country.country_id, country.country, count(*) AS customers
FROM customer
JOIN address ON address.address_id = customer.address_id
JOIN city ON city.city_id = address.city_id
JOIN country ON country.country_id = city.country_id
GROUP BY country.country_id, country.country
