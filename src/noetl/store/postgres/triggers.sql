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

-- last_times --
-- The newest of some documents: a few steps along an index for each.
SELECT last.path, last.time, last.outcome, last.origin, last.reason, last.execution_id,
       last.decided_at
  FROM (SELECT DISTINCT unnest(CAST(:paths AS text[])) AS path) AS document
 CROSS JOIN LATERAL (SELECT path, time, outcome, origin, reason, execution_id, decided_at
                       FROM noetl.trigger_time
                      WHERE path = document.path
                      ORDER BY time DESC
                      LIMIT :limit) AS last
