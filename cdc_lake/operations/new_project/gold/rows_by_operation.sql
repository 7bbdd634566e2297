-- name: rows_by_operation
-- description: Number of rows by the operation that wrote them last.
-- keys: [operation]
-- sources:
--   source: $topic

SELECT __op AS operation, count(*) AS rows
FROM source
WHERE NOT __deleted
GROUP BY __op
