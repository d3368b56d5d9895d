-- Statements about documents that start executions, for every store.

-- trigger --
SELECT path, key, kind, revision, next_at, state
  FROM noetl.trigger
 WHERE path = :path AND key = :key

-- due_triggers --
SELECT path, key, kind, revision, next_at, state
  FROM noetl.trigger
 WHERE next_at <= :now
 ORDER BY next_at, path, key
 LIMIT :limit

-- next_trigger --
SELECT min(next_at) AS next_at FROM noetl.trigger WHERE next_at IS NOT NULL

-- insert_trigger --
INSERT INTO noetl.trigger (path, key, kind, revision, next_at, state)
VALUES (:path, :key, :kind, 1, :next_at, :state)
    ON CONFLICT DO NOTHING

-- update_trigger --
UPDATE noetl.trigger
   SET revision = revision + 1, next_at = :next_at, state = :state
 WHERE path = :path AND key = :key AND revision = :revision

-- delete_trigger --
DELETE FROM noetl.trigger
 WHERE path = :path AND key = :key AND revision = :revision

-- forget_triggers --
DELETE FROM noetl.trigger WHERE path = :path AND key <> '' AND kind = :kind

-- trigger_times --
SELECT path, time, outcome, origin, reason, execution_id, decided_at
  FROM noetl.trigger_time
 WHERE path = :path AND time < :before
 ORDER BY time DESC
 LIMIT :limit

-- trigger_times_between --
SELECT path, time, outcome, origin, reason, execution_id, decided_at
  FROM noetl.trigger_time
 WHERE path = :path AND time BETWEEN :first AND :last
 ORDER BY time

-- buffered_times --
SELECT path, time, outcome, origin, reason, execution_id, decided_at
  FROM noetl.trigger_time
 WHERE path = :path AND outcome = 'buffered'
 ORDER BY time
 LIMIT :limit

-- trigger_messages --
SELECT path, id, at, outcome, reason, execution_id
  FROM noetl.trigger_message
 WHERE path = :path AND at < :before
 ORDER BY at DESC, id DESC
 LIMIT :limit

-- open_messages --
SELECT message.execution_id
  FROM noetl.trigger_message AS message
  JOIN noetl.execution AS execution USING (execution_id)
 WHERE message.path = :path AND execution.ended_at IS NULL
 ORDER BY message.at, message.id
 LIMIT :limit

-- forget_old_messages --
DELETE FROM noetl.trigger_message WHERE path = :path AND at < :before

-- known_messages --
SELECT id FROM noetl.trigger_message WHERE path = :path AND id = ANY(:ids)

-- rename_messages --
UPDATE noetl.trigger_message SET id = :new || substr(id, length(:old) + 1)
 WHERE path = :path
   AND id IN (SELECT one.id FROM noetl.trigger_message AS one
               WHERE one.path = :path AND one.id >= :old AND one.id < :behind
                 AND NOT EXISTS (
                     SELECT 1 FROM noetl.trigger_message AS other
                      WHERE other.path = :path
                        AND other.id = :new || substr(one.id, length(:old) + 1)
                 )
               LIMIT :limit)

-- forget_messages --
DELETE FROM noetl.trigger_message WHERE path = :path AND id = ANY(:ids)

-- put_trigger_time --
-- What was started stays so, whatever is decided about the same time later.
INSERT INTO noetl.trigger_time AS stored
       (path, time, outcome, origin, reason, execution_id, decided_at)
VALUES (:path, :time, :outcome, :origin, :reason, :execution_id, :decided_at)
    ON CONFLICT (path, time) DO UPDATE SET outcome = excluded.outcome, origin = excluded.origin,
       reason = excluded.reason, execution_id = excluded.execution_id,
       decided_at = excluded.decided_at
 WHERE stored.outcome <> 'started'

-- put_trigger_message --
INSERT INTO noetl.trigger_message (path, id, at, outcome, reason, execution_id)
VALUES (:path, :id, :at, :outcome, :reason, :execution_id)
    ON CONFLICT DO NOTHING
