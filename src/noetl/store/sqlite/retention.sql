-- Statements about what is kept and what is forgotten.

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

-- tree --
-- An execution with all that it called; those that were called last come first.
WITH RECURSIVE tree (execution_id, depth) AS (
    SELECT execution_id, 0 FROM noetl_execution WHERE execution_id = :execution_id
     UNION ALL
    SELECT called.execution_id, tree.depth + 1
      FROM tree
      JOIN noetl_execution AS called ON called.parent_execution_id = tree.execution_id
)
SELECT tree.execution_id,
       execution.ended_at IS NOT NULL AS has_ended,
       EXISTS (
           SELECT 1 FROM noetl_hold AS hold WHERE hold.execution_id = tree.execution_id
       ) AS is_held,
       EXISTS (
           SELECT 1 FROM noetl_reuse AS reuse
             JOIN noetl_execution AS other ON other.execution_id = reuse.execution_id
            WHERE reuse.source = tree.execution_id
              AND reuse.execution_id NOT IN (SELECT inside.execution_id FROM tree AS inside)
       ) AS is_reused,
       execution.seq
  FROM tree
  JOIN noetl_execution AS execution ON execution.execution_id = tree.execution_id
 ORDER BY tree.depth DESC, tree.execution_id

-- forgettable --
SELECT execution_id FROM noetl_execution
 WHERE execution_id IN (SELECT value FROM json_each(:execution_ids)) AND ended_at IS NOT NULL
   AND execution_id NOT IN (SELECT hold.execution_id FROM noetl_hold AS hold)

-- tally --
INSERT INTO noetl_tally (day, path, status, executions)
SELECT CAST(requested_at / 86400 AS INTEGER) AS day, path, status, count(*)
  FROM noetl_execution
 WHERE execution_id IN (SELECT value FROM json_each(:execution_ids))
 GROUP BY 1, 2, 3
    ON CONFLICT (day, path, status) DO UPDATE SET executions = executions + excluded.executions

-- forget_results --
DELETE FROM noetl_result WHERE execution_id IN (SELECT value FROM json_each(:execution_ids))

-- forget_reuse --
DELETE FROM noetl_reuse WHERE execution_id IN (SELECT value FROM json_each(:execution_ids))

-- forget_executions --
-- What else belongs to them goes with them.
DELETE FROM noetl_execution WHERE execution_id IN (SELECT value FROM json_each(:execution_ids))

-- is_filed --
SELECT 1 FROM noetl_result WHERE sha256 = :digest AND body IS NULL LIMIT 1

-- forgotten --
SELECT day, path, status, executions FROM noetl_tally WHERE day >= :since_day ORDER BY day, path, status

-- reuse --
INSERT INTO noetl_reuse (execution_id, source) VALUES (:execution_id, :source) ON CONFLICT DO NOTHING

-- hold --
INSERT INTO noetl_hold (execution_id, note, who, at)
SELECT execution_id, :note, :who, :at FROM noetl_execution WHERE execution_id = :execution_id
    ON CONFLICT (execution_id) DO UPDATE SET note = excluded.note, who = excluded.who,
       at = excluded.at

-- release --
DELETE FROM noetl_hold WHERE execution_id = :execution_id

-- holds --
SELECT execution_id, note, who, at FROM noetl_hold ORDER BY at DESC, execution_id
