-- Statements about documents that start executions.

-- trigger --
SELECT path, key, kind, revision, next_at, state
  FROM noetl.trigger
 WHERE path = %(path)s AND key = %(key)s

-- lock_trigger --
SELECT path, key, kind, revision, next_at, state
  FROM noetl.trigger
 WHERE path = %(path)s AND key = %(key)s
   FOR UPDATE

-- triggers --
SELECT path, key, kind, revision, next_at, state
  FROM noetl.trigger
 WHERE kind = %(kind)s
   AND starts_with(path, %(prefix)s)
   AND (path, key) > (%(path)s::text COLLATE "C", %(key)s::text COLLATE "C")
 ORDER BY path, key
 LIMIT %(limit)s

-- due_triggers --
SELECT path, key, kind, revision, next_at, state
  FROM noetl.trigger
 WHERE next_at <= %(now)s
 ORDER BY next_at, path, key
 LIMIT %(limit)s

-- next_trigger --
SELECT min(next_at) AS next_at FROM noetl.trigger WHERE next_at IS NOT NULL

-- insert_trigger --
INSERT INTO noetl.trigger (path, key, kind, revision, next_at, state)
VALUES (%(path)s, %(key)s, %(kind)s, 1, %(next_at)s, %(state)s)
    ON CONFLICT DO NOTHING

-- update_trigger --
UPDATE noetl.trigger
   SET revision = revision + 1, next_at = %(next_at)s, state = %(state)s
 WHERE path = %(path)s AND key = %(key)s AND revision = %(revision)s

-- delete_trigger --
DELETE FROM noetl.trigger
 WHERE path = %(path)s AND key = %(key)s AND revision = %(revision)s

-- forget_triggers --
DELETE FROM noetl.trigger WHERE path = %(path)s AND key <> '' AND kind = %(kind)s

-- put_trigger_times --
-- What was started stays so, whatever is decided about the same time later.
INSERT INTO noetl.trigger_time AS stored (
    path, time, outcome, origin, reason, execution_id, decided_at
)
SELECT path, time, outcome, origin, reason, execution_id, decided_at
  FROM json_to_recordset(%(times)s::json) AS given (
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
 WHERE path = %(path)s AND time < %(before)s
 ORDER BY time DESC
 LIMIT %(limit)s

-- trigger_times_between --
SELECT path, time, outcome, origin, reason, execution_id, decided_at
  FROM noetl.trigger_time
 WHERE path = %(path)s AND time BETWEEN %(first)s AND %(last)s
 ORDER BY time

-- buffered_times --
SELECT path, time, outcome, origin, reason, execution_id, decided_at
  FROM noetl.trigger_time
 WHERE path = %(path)s AND outcome = 'buffered'
 ORDER BY time
 LIMIT %(limit)s


-- put_trigger_messages --
INSERT INTO noetl.trigger_message (path, id, at, outcome, reason, execution_id)
SELECT path, id, at, outcome, reason, execution_id
  FROM json_to_recordset(%(messages)s::json) AS given (
    path text, id text, at double precision, outcome text, reason text, execution_id text
  )
    ON CONFLICT DO NOTHING

-- trigger_messages --
SELECT path, id, at, outcome, reason, execution_id
  FROM noetl.trigger_message
 WHERE path = %(path)s AND at < %(before)s
 ORDER BY at DESC, id DESC
 LIMIT %(limit)s

-- known_messages --
SELECT id FROM noetl.trigger_message WHERE path = %(path)s AND id = ANY(%(ids)s)

-- open_messages --
SELECT message.execution_id
  FROM noetl.trigger_message AS message
  JOIN noetl.execution AS execution USING (execution_id)
 WHERE message.path = %(path)s AND execution.ended_at IS NULL
 ORDER BY message.at, message.id
 LIMIT %(limit)s

-- forget_messages --
DELETE FROM noetl.trigger_message WHERE path = %(path)s AND id = ANY(%(ids)s)

-- forget_old_messages --
DELETE FROM noetl.trigger_message WHERE path = %(path)s AND at < %(before)s
