-- Statements about the limits that hold executions back, and about rates.

-- slot_holders --
-- Who has, or wants, a slot of these limits.
SELECT slot.execution_id, slot.name, slot.capacity, slot.held, execution.path
  FROM noetl_slot AS slot
  JOIN noetl_execution AS execution USING (execution_id)
 WHERE slot.name IN (SELECT value FROM json_each(:names))
   AND execution.status IN ('PENDING', 'RUNNING', 'PAUSED')
 ORDER BY slot.name, slot.held DESC, slot.priority DESC, slot.requested_at, slot.execution_id
 LIMIT 100

-- take_moment --
INSERT INTO noetl_rate (key, next_at) VALUES (:key, :now + :apart)
    ON CONFLICT DO UPDATE SET next_at = max(next_at, :now) + :apart
RETURNING next_at
