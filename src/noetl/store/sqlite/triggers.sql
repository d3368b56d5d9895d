-- Statements about documents that start executions, beside those of store/triggers.sql.

-- triggers --
SELECT path, key, kind, revision, next_at, state
  FROM noetl_trigger
 WHERE kind = :kind
   AND substr(path, 1, length(:prefix)) = :prefix
   AND (path, key) > (:path, :key)
 ORDER BY path, key
 LIMIT :limit
