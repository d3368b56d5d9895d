-- Statements about documents that start executions, beside those of store/triggers.sql.

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

-- put_trigger_messages --
INSERT INTO noetl.trigger_message (path, id, at, outcome, reason, execution_id)
SELECT path, id, at, outcome, reason, execution_id
  FROM json_to_recordset(:messages::json) AS given (
    path text, id text, at double precision, outcome text, reason text, execution_id text
  )
    ON CONFLICT DO NOTHING

-- known_messages --
SELECT id FROM noetl.trigger_message WHERE path = :path AND id = ANY(:ids)

-- forget_messages --
DELETE FROM noetl.trigger_message WHERE path = :path AND id = ANY(:ids)
