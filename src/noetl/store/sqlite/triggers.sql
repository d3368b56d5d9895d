-- Statements about documents that start executions.

-- trigger --
SELECT path, key, kind, revision, next_at, state FROM noetl_trigger WHERE path = :path AND key = :key

-- triggers --
SELECT path, key, kind, revision, next_at, state
  FROM noetl_trigger
 WHERE kind = :kind
   AND substr(path, 1, length(:prefix)) = :prefix
   AND (path, key) > (:path, :key)
 ORDER BY path, key
 LIMIT :limit

-- due_triggers --
SELECT path, key, kind, revision, next_at, state
  FROM noetl_trigger
 WHERE next_at <= :now
 ORDER BY next_at, path, key
 LIMIT :limit

-- next_trigger --
SELECT min(next_at) FROM noetl_trigger WHERE next_at IS NOT NULL

-- insert_trigger --
INSERT INTO noetl_trigger (path, key, kind, revision, next_at, state)
VALUES (:path, :key, :kind, 1, :next_at, :state)
    ON CONFLICT DO NOTHING

-- update_trigger --
UPDATE noetl_trigger
   SET revision = revision + 1, next_at = :next_at, state = :state
 WHERE path = :path AND key = :key AND revision = :revision

-- delete_trigger --
DELETE FROM noetl_trigger WHERE path = :path AND key = :key AND revision = :revision

-- forget_triggers --
DELETE FROM noetl_trigger WHERE path = :path AND key <> '' AND kind = :kind

-- put_trigger_time --
-- What was started stays so, whatever is decided about the same time later.
INSERT INTO noetl_trigger_time (path, time, outcome, origin, reason, execution_id, decided_at)
VALUES (:path, :time, :outcome, :origin, :reason, :execution_id, :decided_at)
    ON CONFLICT DO UPDATE SET outcome = excluded.outcome, origin = excluded.origin,
       reason = excluded.reason, execution_id = excluded.execution_id,
       decided_at = excluded.decided_at
 WHERE outcome <> 'started'

-- trigger_times --
SELECT path, time, outcome, origin, reason, execution_id, decided_at
  FROM noetl_trigger_time
 WHERE path = :path AND time < :before
 ORDER BY time DESC
 LIMIT :limit

-- trigger_times_between --
SELECT path, time, outcome, origin, reason, execution_id, decided_at
  FROM noetl_trigger_time
 WHERE path = :path AND time BETWEEN :first AND :last
 ORDER BY time

-- buffered_times --
SELECT path, time, outcome, origin, reason, execution_id, decided_at
  FROM noetl_trigger_time
 WHERE path = :path AND outcome = 'buffered'
 ORDER BY time
 LIMIT :limit

-- trigger_message --
SELECT 1 FROM noetl_trigger_message WHERE path = :path AND id = :id

-- put_trigger_message --
INSERT INTO noetl_trigger_message (path, id, at, outcome, reason, execution_id)
VALUES (:path, :id, :at, :outcome, :reason, :execution_id)

-- trigger_messages --
SELECT path, id, at, outcome, reason, execution_id
  FROM noetl_trigger_message
 WHERE path = :path AND at < :before
 ORDER BY at DESC, id DESC
 LIMIT :limit

-- known_messages --
SELECT id
  FROM noetl_trigger_message
 WHERE path = :path AND id IN (SELECT value FROM json_each(:ids))

-- open_messages --
SELECT message.execution_id
  FROM noetl_trigger_message AS message
  JOIN noetl_execution AS execution USING (execution_id)
 WHERE message.path = :path AND execution.ended_at IS NULL
 ORDER BY message.at, message.id
 LIMIT :limit

-- forget_messages --
DELETE FROM noetl_trigger_message
 WHERE path = :path AND id IN (SELECT value FROM json_each(:ids))

-- forget_old_messages --
DELETE FROM noetl_trigger_message WHERE path = :path AND at < :before
