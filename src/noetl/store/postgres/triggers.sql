-- Statements about documents that start executions.

-- trigger --
SELECT path, key, kind, revision, next_at, state
  FROM noetl.trigger
 WHERE path = :path AND key = :key

-- lock_trigger --
SELECT 1 FROM noetl.trigger WHERE path = :path AND key = :key FOR UPDATE

-- triggers --
SELECT path, key, kind, revision, next_at, state
  FROM noetl.trigger
 WHERE kind = :kind
   AND starts_with(path, :prefix)
   AND (path, key) > (:path::text COLLATE "C", :key::text COLLATE "C")
 ORDER BY path, key
 LIMIT :limit

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

-- put_trigger_times --
-- What was started stays so, whatever is decided about the same time later.
INSERT INTO noetl.trigger_time AS stored (
    path, time, outcome, origin, reason, execution_id, decided_at
)
SELECT path, time, outcome, origin, reason, execution_id, decided_at
  FROM json_to_recordset(:times::json) AS given (
    path text, time double precision, outcome text, origin text, reason text, execution_id text,
    decided_at double precision
  )
    ON CONFLICT (path, time) DO UPDATE SET outcome = excluded.outcome, origin = excluded.origin,
       reason = excluded.reason, execution_id = excluded.execution_id,
       decided_at = excluded.decided_at
 WHERE stored.outcome <> 'started'

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


-- put_trigger_messages --
INSERT INTO noetl.trigger_message (path, id, at, outcome, reason, execution_id)
SELECT path, id, at, outcome, reason, execution_id
  FROM json_to_recordset(:messages::json) AS given (
    path text, id text, at double precision, outcome text, reason text, execution_id text
  )
    ON CONFLICT DO NOTHING

-- trigger_messages --
SELECT path, id, at, outcome, reason, execution_id
  FROM noetl.trigger_message
 WHERE path = :path AND at < :before
 ORDER BY at DESC, id DESC
 LIMIT :limit

-- known_messages --
SELECT id FROM noetl.trigger_message WHERE path = :path AND id = ANY(:ids)

-- open_messages --
SELECT message.execution_id
  FROM noetl.trigger_message AS message
  JOIN noetl.execution AS execution USING (execution_id)
 WHERE message.path = :path AND execution.ended_at IS NULL
 ORDER BY message.at, message.id
 LIMIT :limit

-- forget_messages --
DELETE FROM noetl.trigger_message WHERE path = :path AND id = ANY(:ids)

-- forget_old_messages --
DELETE FROM noetl.trigger_message WHERE path = :path AND at < :before
