-- Statements about the log of executions and all that a commit writes. `?` where many rows are sent at once.

-- head --
-- Where the log of an execution ends.
SELECT seq, checksum FROM noetl_execution WHERE execution_id = ?

-- standing --
-- The same, and the status: a write that leaves it alone is cheaper.
SELECT seq, checksum, status FROM noetl_execution WHERE execution_id = ?

-- key_owner --
SELECT execution_id FROM noetl_execution WHERE idempotency_key = ?

-- insert_execution --
INSERT INTO noetl_execution (
    execution_id, seq, checksum, path, version, digest, status, requested_at, ended_at,
    parent_execution_id, idempotency_key, labels, current_steps, error,
    failed_step, waits
) VALUES (
    :execution_id, :seq, :checksum, :path, :version, :digest, :status, :requested_at, :ended_at,
    :parent_execution_id, :idempotency_key, :labels, :current_steps, :error,
    :failed_step, :waits
)

-- insert_label --
INSERT INTO noetl_label (execution_id, name, value, requested_at) VALUES (?, ?, ?, ?)

-- update_execution --
-- What was requested never changes, so its columns and their indexes are left alone. Nothing is
-- changed if the log does not end where the decision was made, here and in the next two.
UPDATE noetl_execution
   SET seq = ?, checksum = ?, status = ?, ended_at = ?, current_steps = ?, error = ?,
       failed_step = ?, waits = ?
 WHERE execution_id = ? AND seq = ? AND checksum = ?

-- progress_execution --
-- The status stays: neither its index nor the checks on it are gone through.
UPDATE noetl_execution
   SET seq = ?, checksum = ?, current_steps = ?, error = ?, failed_step = ?, waits = ?
 WHERE execution_id = ? AND seq = ? AND checksum = ? AND status = ?

-- advance_execution --
UPDATE noetl_execution SET seq = ?, checksum = ?
 WHERE execution_id = ? AND seq = ? AND checksum = ?

-- insert_events --
INSERT INTO noetl_log (execution_id, seq, events, checksum) VALUES (?, ?, ?, ?)

-- insert_command --
INSERT INTO noetl_queue (execution_id, command_id, pool, body, checksum, priority, turn)
VALUES (?, ?, ?, ?, ?, ?, ?)

-- insert_lease --
INSERT INTO noetl_lease (execution_id, command_id, pool, body, checksum, worker_id, expires_at)
VALUES (?, ?, ?, ?, ?, ?, ?)

-- close_lease --
DELETE FROM noetl_lease WHERE execution_id = ? AND command_id = ?

-- close_command --
DELETE FROM noetl_queue WHERE execution_id = ? AND command_id = ?

-- set_timer --
INSERT INTO noetl_timer (execution_id, timer_id, fires_at) VALUES (?, ?, ?)
    ON CONFLICT DO UPDATE SET fires_at = excluded.fires_at

-- clear_timer --
DELETE FROM noetl_timer WHERE execution_id = ? AND timer_id = ?

-- full_slots --
-- The limits of an execution that leave it no room. A new one also lets pass those that wait.
SELECT wanted.key
  FROM json_each(:wanted) AS wanted
 WHERE (SELECT count(*)
          FROM noetl_slot AS holder
          JOIN noetl_execution AS running USING (execution_id)
         WHERE holder.name = wanted.key AND holder.held = 1
           AND holder.execution_id <> :execution_id
           AND running.status IN ('RUNNING', 'PAUSED')) >= wanted.value
    OR (:is_new AND EXISTS (SELECT 1 FROM noetl_slot AS waiting
                             WHERE waiting.name = wanted.key AND waiting.held = 0
                               AND waiting.execution_id <> :execution_id
                               AND waiting.priority >= :priority))

-- snapshot --
SELECT seq, event_checksum, body, checksum FROM noetl_snapshot WHERE execution_id = ?

-- log_after --
SELECT seq, events, checksum FROM noetl_log WHERE execution_id = ? AND seq > ? ORDER BY seq

-- openings --
-- The first row of each log.
SELECT log.execution_id, log.events
  FROM json_each(:executions) AS asked
  JOIN noetl_log AS log ON log.execution_id = asked.value
 WHERE log.seq = (SELECT min(seq) FROM noetl_log AS one WHERE one.execution_id = asked.value)
