-- Statements about documents that start executions, beside those of store/triggers.sql.

-- triggers --
SELECT path, key, kind, revision, next_at, state
  FROM noetl_trigger
 WHERE kind = :kind
   AND substr(path, 1, length(:prefix)) = :prefix
   AND (path, key) > (:path, :key)
 ORDER BY path, key
 LIMIT :limit

-- last_times --
-- The newest of some documents: a few steps along an index for each.
SELECT last.path, last.time, last.outcome, last.origin, last.reason, last.execution_id,
       last.decided_at
  FROM (SELECT DISTINCT value AS path FROM json_each(:paths)) AS document
  JOIN noetl_trigger_time AS last
    ON last.path = document.path
   AND last.time IN (SELECT newest.time
                       FROM noetl_trigger_time AS newest
                      WHERE newest.path = document.path
                      ORDER BY newest.time DESC
                      LIMIT :limit)
