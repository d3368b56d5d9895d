-- Statements about what is kept and what is forgotten, for every store.

-- trees --
-- Executions with all that they called; those that were called last come first.
WITH RECURSIVE tree (root, execution_id, depth) AS (
    SELECT execution_id, execution_id, 0
      FROM noetl.execution
     WHERE execution_id = ANY(:execution_ids)
     UNION ALL
    SELECT tree.root, called.execution_id, tree.depth + 1
      FROM tree
      JOIN noetl.execution AS called ON called.parent_execution_id = tree.execution_id
)
SELECT tree.root,
       tree.execution_id,
       execution.ended_at IS NOT NULL AS has_ended,
       EXISTS (
           SELECT 1 FROM noetl.hold AS hold WHERE hold.execution_id = tree.execution_id
       ) AS is_held,
       EXISTS (
           SELECT 1 FROM noetl.reuse AS reuse
             JOIN noetl.execution AS other ON other.execution_id = reuse.execution_id
            WHERE reuse.source = tree.execution_id
              AND reuse.execution_id NOT IN (
                  SELECT inside.execution_id FROM tree AS inside WHERE inside.root = tree.root
              )
       ) AS is_reused,
       execution.seq
  FROM tree
  JOIN noetl.execution AS execution ON execution.execution_id = tree.execution_id
 ORDER BY tree.depth DESC, tree.execution_id

-- forgotten --
SELECT day, path, status, executions
  FROM noetl.tally
 WHERE day >= :since_day
 ORDER BY day, path, status

-- reuse --
INSERT INTO noetl.reuse (execution_id, source) VALUES (:execution_id, :source)
    ON CONFLICT DO NOTHING

-- hold --
INSERT INTO noetl.hold AS held (execution_id, note, who, at)
SELECT execution_id, :note, :who, :at
  FROM noetl.execution
 WHERE execution_id = :execution_id
    ON CONFLICT (execution_id) DO UPDATE SET who = excluded.who, at = excluded.at,
       note = coalesce(nullif(excluded.note, ''), held.note)

-- release --
DELETE FROM noetl.hold WHERE execution_id = :execution_id

-- holds --
SELECT execution_id, note, who, at FROM noetl.hold ORDER BY at DESC, execution_id

-- forget_results --
DELETE FROM noetl.result WHERE execution_id = ANY(:execution_ids)

-- forget_log --
DELETE FROM noetl.log WHERE execution_id = ANY(:execution_ids)

-- forget_reuse --
DELETE FROM noetl.reuse WHERE execution_id = ANY(:execution_ids)
