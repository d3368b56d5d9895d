-- Statements about the log of executions and what few decisions change, for every store.

-- heads --
-- Where logs end.
SELECT execution_id, seq, checksum
  FROM noetl.execution
 WHERE execution_id = ANY(:executions)

-- log_before --
-- The last row whose events were all before.
SELECT seq, checksum
  FROM noetl.log
 WHERE execution_id = :execution_id AND seq <= :after
 ORDER BY seq DESC
 LIMIT 1

-- put_snapshot --
INSERT INTO noetl.snapshot (execution_id, seq, event_checksum, body, checksum)
VALUES (:execution_id, :seq, :event_checksum, :body, :checksum)
    ON CONFLICT (execution_id) DO UPDATE SET seq = excluded.seq,
       event_checksum = excluded.event_checksum, body = excluded.body,
       checksum = excluded.checksum

-- set_var --
INSERT INTO noetl.transient (execution_id, name, value)
VALUES (:execution_id, :name, :value)
    ON CONFLICT (execution_id, name) DO UPDATE SET value = excluded.value

-- delete_var --
DELETE FROM noetl.transient WHERE execution_id = :execution_id AND name = :name

-- vars --
SELECT name, value FROM noetl.transient WHERE execution_id = :execution_id ORDER BY name

-- put_slot --
INSERT INTO noetl.slot (execution_id, name, capacity, held, replaces, priority, requested_at)
VALUES (:execution_id, :name, :capacity, :held, :replaces, :priority, :requested_at)
    ON CONFLICT (execution_id, name) DO UPDATE SET held = excluded.held

-- free_slots --
DELETE FROM noetl.slot WHERE execution_id = :execution_id
