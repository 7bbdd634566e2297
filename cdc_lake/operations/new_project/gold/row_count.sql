-- name: row_count
-- description: Number of rows that are not deleted, as a first example.
-- keys: [topic]
-- sources:
--   source: $topic

SELECT '$topic' AS topic, count(*) AS rows
FROM source
