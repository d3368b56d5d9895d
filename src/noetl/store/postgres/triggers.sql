-- Statements about documents that start executions, beside those of store/triggers.sql.

-- lock_trigger --
SELECT 1 FROM noetl.trigger WHERE path = :path AND key = :key FOR UPDATE

-- triggers --
SELECT path, key, kind, revision, next_at, state
  FROM noetl.trigger
 WHERE kind = :kind
   AND starts_with(path, :prefix)
   AND (path, key) > (:path::text COLLATE "C", :key::text COLLATE "C")
 ORDER BY path, key
 LIMIT :limit
