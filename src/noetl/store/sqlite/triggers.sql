-- Statements about documents that start executions, beside those of store/triggers.sql.

-- triggers --
SELECT path, key, kind, revision, next_at, state
  FROM noetl_trigger
 WHERE kind = :kind
   AND substr(path, 1, length(:prefix)) = :prefix
   AND (path, key) > (:path, :key)
 ORDER BY path, key
 LIMIT :limit

-- put_trigger_time --
-- What was started stays so, whatever is decided about the same time later.
INSERT INTO noetl_trigger_time (path, time, outcome, origin, reason, execution_id, decided_at)
VALUES (:path, :time, :outcome, :origin, :reason, :execution_id, :decided_at)
    ON CONFLICT DO UPDATE SET outcome = excluded.outcome, origin = excluded.origin,
       reason = excluded.reason, execution_id = excluded.execution_id,
       decided_at = excluded.decided_at
 WHERE outcome <> 'started'

-- trigger_message --
SELECT 1 FROM noetl_trigger_message WHERE path = :path AND id = :id

-- put_trigger_message --
INSERT INTO noetl_trigger_message (path, id, at, outcome, reason, execution_id)
VALUES (:path, :id, :at, :outcome, :reason, :execution_id)

-- known_messages --
SELECT id
  FROM noetl_trigger_message
 WHERE path = :path AND id IN (SELECT value FROM json_each(:ids))

-- forget_messages --
DELETE FROM noetl_trigger_message
 WHERE path = :path AND id IN (SELECT value FROM json_each(:ids))
