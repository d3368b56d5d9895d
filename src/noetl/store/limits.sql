-- Statements about the limits that hold executions back, and about rates, for every store.
-- Columns are compared with TRUE and FALSE, because both databases look that up in an index.

-- admissible --
-- Those that wait and whose every limit has room: of each limit as many as it has room for.
WITH free AS MATERIALIZED (
    SELECT waiting.name,
           waiting.capacity - (SELECT count(*)
                                 FROM noetl.slot AS holder
                                 JOIN noetl.execution AS running USING (execution_id)
                                WHERE holder.name = waiting.name AND holder.held = TRUE
                                  AND running.status IN ('RUNNING', 'PAUSED')) AS room
      FROM (SELECT name, max(capacity) AS capacity
              FROM noetl.slot WHERE held = FALSE GROUP BY name) AS waiting
), possible AS (
    SELECT waiting.execution_id, waiting.priority, waiting.requested_at, free.room,
           row_number() OVER (PARTITION BY waiting.name
                              ORDER BY waiting.priority DESC, waiting.requested_at,
                                       waiting.execution_id) AS place
      FROM free
      JOIN noetl.slot AS waiting ON waiting.name = free.name AND waiting.held = FALSE
     WHERE free.room > 0
       AND NOT EXISTS (SELECT 1 FROM noetl.slot AS other
                         JOIN free AS taken ON taken.name = other.name AND taken.room <= 0
                        WHERE other.execution_id = waiting.execution_id)
)
SELECT execution_id
  FROM possible
 WHERE place <= room
 GROUP BY execution_id, priority, requested_at
 ORDER BY priority DESC, requested_at, execution_id
 LIMIT :limit

-- bounded --
SELECT DISTINCT execution_id FROM noetl.slot ORDER BY execution_id

-- displaced --
-- Those that a newer one replaces: more than the limit allows are newer, and one of these waits.
SELECT older.execution_id, min(newer.execution_id) AS by
  FROM noetl.slot AS newest
  JOIN noetl.slot AS older
    ON older.name = newest.name AND (older.requested_at, older.execution_id)
                                    < (newest.requested_at, newest.execution_id)
  JOIN noetl.slot AS newer
    ON newer.name = older.name AND (newer.requested_at, newer.execution_id)
                                   > (older.requested_at, older.execution_id)
 WHERE newest.held = FALSE AND newest.replaces = TRUE
 GROUP BY older.execution_id, older.name, older.capacity
HAVING count(DISTINCT newer.execution_id) >= older.capacity
 LIMIT :limit

-- forget_moments --
DELETE FROM noetl.rate WHERE next_at < :before

-- slot_holders --
-- Who has, or wants, a slot of these limits.
SELECT slot.execution_id, slot.name, slot.capacity, slot.held, execution.path
  FROM noetl.slot AS slot
  JOIN noetl.execution AS execution USING (execution_id)
 WHERE slot.name = ANY(:names) AND execution.status IN ('PENDING', 'RUNNING', 'PAUSED')
 ORDER BY slot.name, slot.held DESC, slot.priority DESC, slot.requested_at, slot.execution_id
 LIMIT 100

-- slots_of --
SELECT name, capacity, replaces, priority, held, requested_at
  FROM noetl.slot
 WHERE execution_id = :execution_id
 ORDER BY name

-- take_moment --
INSERT INTO noetl.rate AS stored (key, next_at)
VALUES (:key, CAST(:now AS double precision) + CAST(:apart AS double precision))
    ON CONFLICT (key) DO UPDATE
   SET next_at = CASE WHEN stored.next_at > CAST(:now AS double precision)
                      THEN stored.next_at ELSE CAST(:now AS double precision) END
               + CAST(:apart AS double precision)
RETURNING next_at
