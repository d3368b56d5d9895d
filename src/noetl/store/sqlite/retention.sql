-- Statements about what is kept and what is forgotten, beside those of store/retention.sql.

-- ended --
-- By their request, for which there is an index anyway: one by their end would cost every end a page.
-- What ended before a moment was requested before it, and most of that is forgotten already.
SELECT execution_id, path, status, requested_at, ended_at
  FROM noetl_execution
 WHERE requested_at < :before AND (requested_at, execution_id) > (:requested_after, :after_id)
   AND ended_at < :before AND ended_at >= :since AND parent_execution_id IS NULL
   AND substr(path, 1, length(:prefix)) = :prefix
 ORDER BY requested_at, execution_id
 LIMIT :limit

-- forgettable --
SELECT execution_id FROM noetl_execution
 WHERE execution_id = ANY(:execution_ids) AND ended_at IS NOT NULL
   AND execution_id NOT IN (SELECT hold.execution_id FROM noetl_hold AS hold)

-- tally --
INSERT INTO noetl_tally (day, path, status, executions)
SELECT CAST(requested_at / 86400 AS INTEGER) AS day, path, status, count(*)
  FROM noetl_execution
 WHERE execution_id = ANY(:execution_ids)
 GROUP BY 1, 2, 3
    ON CONFLICT (day, path, status) DO UPDATE SET executions = executions + excluded.executions

-- forget_executions --
-- What else belongs to them goes with them.
DELETE FROM noetl_execution WHERE execution_id = ANY(:execution_ids)

-- is_filed --
SELECT 1 FROM noetl_result WHERE sha256 = :digest AND body IS NULL LIMIT 1
