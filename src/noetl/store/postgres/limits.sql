-- Statements about the limits that hold executions back, and about rates.

-- slot_holders --
-- Who has, or wants, a slot of these limits.
SELECT slot.execution_id, slot.name, slot.capacity, slot.held, execution.path
  FROM noetl.slot AS slot
  JOIN noetl.execution AS execution USING (execution_id)
 WHERE slot.name = ANY(:names) AND execution.status IN ('PENDING', 'RUNNING', 'PAUSED')
 ORDER BY slot.name, slot.held DESC, slot.priority DESC, slot.requested_at, slot.execution_id
 LIMIT 100

-- take_moment --
INSERT INTO noetl.rate AS stored (key, next_at)
VALUES (:key, :now::double precision + :apart::double precision)
    ON CONFLICT (key) DO UPDATE
   SET next_at = greatest(stored.next_at, :now::double precision)
               + :apart::double precision
RETURNING next_at
