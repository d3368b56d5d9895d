-- Statements about the log of executions and all that a commit writes. Each is one transaction unless it says otherwise.

-- commit --
-- All that most decisions change, in one round trip. An execution is kept if its log still ends
-- where the decision began: then, and only then, the rows that belong to it are written.
WITH given AS MATERIALIZED (
    SELECT *
      FROM json_to_recordset(:executions::json) AS given (
        execution_id text, seq_before bigint, checksum_before bigint, seq bigint, checksum bigint,
        path text, version integer, digest text, status text, requested_at double precision,
        ended_at double precision, parent_execution_id text, idempotency_key text,
        current_steps text, error text, labels text, failed_step text,
        waits text
      )
), created AS (
    INSERT INTO noetl.execution (
        execution_id, seq, checksum, path, version, digest, status, requested_at, ended_at,
        parent_execution_id, idempotency_key, current_steps, error, labels,
        failed_step, waits
    )
    SELECT execution_id, seq, checksum, path, version, digest, status, requested_at, ended_at,
           parent_execution_id, idempotency_key, current_steps, error, labels,
           failed_step, waits
      FROM given
     WHERE seq_before = 0
        ON CONFLICT DO NOTHING
    RETURNING execution_id, requested_at, labels
), labelled AS (
    INSERT INTO noetl.label (execution_id, name, value, requested_at)
    SELECT execution_id, label.key, label.value, requested_at
      FROM created
     CROSS JOIN LATERAL json_each_text(created.labels::json) AS label
     WHERE created.labels IS NOT NULL
), advanced AS (
    UPDATE noetl.execution AS stored
       SET seq = given.seq, checksum = given.checksum,
           status = coalesce(given.status, stored.status),
           ended_at = CASE WHEN given.status IS NULL THEN stored.ended_at ELSE given.ended_at END,
           current_steps = coalesce(given.current_steps, stored.current_steps),
           error = CASE WHEN given.status IS NULL THEN stored.error ELSE given.error END,
           failed_step = coalesce(given.failed_step, stored.failed_step),
           waits = coalesce(given.waits, stored.waits)
      FROM given
     WHERE stored.execution_id = given.execution_id
       AND stored.execution_id = ANY(:ids) -- So that a plan made while the table was small
       AND given.seq_before > 0               -- does not read all of it when it is large.
       AND stored.seq = given.seq_before
       AND stored.checksum = given.checksum_before
    RETURNING stored.execution_id
), kept AS MATERIALIZED (
    SELECT execution_id FROM created UNION ALL SELECT execution_id FROM advanced
), logged AS (
    INSERT INTO noetl.log (execution_id, seq, events, checksum)
    SELECT execution_id, seq, decode(events, 'base64'), checksum
      FROM json_to_recordset(:log::json) AS row (
        execution_id text, seq bigint, events text, checksum bigint
      )
     WHERE execution_id IN (SELECT execution_id FROM kept)
), queued AS (
    INSERT INTO noetl.queue (
        execution_id, command_id, pool, priority, turn, home, body, checksum, worker_id,
        lease_expires_at
    )
    SELECT execution_id, command_id, pool, priority, turn, :home::text, decode(body, 'base64'),
           checksum, worker_id, lease_expires_at
      FROM json_to_recordset(:commands::json) AS command (
        number integer, execution_id text, command_id text, pool text, priority integer,
        turn bigint, body text, checksum bigint, worker_id text, lease_expires_at double precision
      )
     WHERE execution_id IN (SELECT execution_id FROM kept)
     ORDER BY number
), closed AS (
    DELETE FROM noetl.queue AS stored
     USING json_to_recordset(:closed::json) AS command (execution_id text, id text)
     WHERE stored.execution_id = command.execution_id
       AND stored.command_id = command.id
       AND command.execution_id IN (SELECT execution_id FROM kept)
), timed AS (
    INSERT INTO noetl.timer (execution_id, timer_id, fires_at)
    SELECT execution_id, timer_id, fires_at
      FROM json_to_recordset(:timers::json) AS timer (
        execution_id text, timer_id text, fires_at double precision
      )
     WHERE execution_id IN (SELECT execution_id FROM kept)
        ON CONFLICT (execution_id, timer_id) DO UPDATE SET fires_at = excluded.fires_at
), cleared AS (
    DELETE FROM noetl.timer AS stored
     USING json_to_recordset(:timers_cleared::json) AS timer (execution_id text, id text)
     WHERE stored.execution_id = timer.execution_id
       AND stored.timer_id = timer.id
       AND timer.execution_id IN (SELECT execution_id FROM kept)
), audited AS (
    INSERT INTO noetl.audit (at, who, action, target, execution_id, details)
    SELECT at, who, action, target, execution_id, details
      FROM json_to_recordset(:audit::json) AS entry (
        at double precision, who text, action text, target text, execution_id text, details text
      )
     WHERE execution_id IN (SELECT execution_id FROM kept)
)
SELECT execution_id FROM kept

-- commit_one --
-- The same for one execution that goes on, with one command issued and one closed at most. Most
-- decisions are like that, and somebody waits for each: without JSON it takes half the time.
WITH kept AS MATERIALIZED (
    UPDATE noetl.execution
       SET seq = :seq, checksum = :checksum,
           status = coalesce(:status::text, status),
           ended_at = CASE WHEN :status::text IS NULL THEN ended_at
                      ELSE :ended_at::double precision END,
           current_steps = coalesce(:current_steps::text, current_steps),
           error = CASE WHEN :status::text IS NULL THEN error ELSE :error::text END,
           failed_step = coalesce(:failed_step::text, failed_step),
           waits = coalesce(:waits::text, waits)
     WHERE execution_id = :execution_id
       AND seq = :seq_before
       AND checksum = :checksum_before
    RETURNING execution_id
), logged AS (
    INSERT INTO noetl.log (execution_id, seq, events, checksum)
    SELECT execution_id, :seq::bigint, :events::bytea, :checksum::bigint
      FROM kept
     WHERE :events::bytea IS NOT NULL
), queued AS (
    INSERT INTO noetl.queue (
        execution_id, command_id, pool, priority, turn, home, body, checksum, worker_id,
        lease_expires_at
    )
    SELECT execution_id, :command_id::text, :pool::text, :priority::integer,
           :turn::bigint, :home::text, :body::bytea, :body_checksum::bigint, :worker_id::text,
           :lease_expires_at::double precision
      FROM kept
     WHERE :command_id::text IS NOT NULL
), closed AS (
    DELETE FROM noetl.queue AS stored
     USING kept
     WHERE stored.execution_id = kept.execution_id
       AND stored.command_id = :closed::text
)
SELECT execution_id FROM kept

-- lock_slots --
-- Limits are taken up by one transaction at a time; held to its end. In this order everywhere.
SELECT pg_advisory_xact_lock(hashtextextended('noetl.slot ' || :name, 0))

-- full_slots --
-- The limits of an execution that leave it no room. A new one also lets pass those that wait.
SELECT wanted.name
  FROM unnest(:names::text[], :capacities::integer[]) AS wanted (name, capacity)
 WHERE (SELECT count(*)
          FROM noetl.slot AS holder
          JOIN noetl.execution AS running USING (execution_id)
         WHERE holder.name = wanted.name AND holder.held
           AND holder.execution_id <> :execution_id
           AND running.status IN ('RUNNING', 'PAUSED')) >= wanted.capacity
    OR (:is_new AND EXISTS (SELECT FROM noetl.slot AS waiting
                                WHERE waiting.name = wanted.name AND NOT waiting.held
                                  AND waiting.execution_id <> :execution_id
                                  AND waiting.priority >= :priority))

-- load --
-- All that a state is made of, as it is at one moment, in one round trip: the end of the log with
-- the snapshot, the rows after it, and the commands that are open.
SELECT 'end' AS part, execution.seq, execution.checksum, snapshot.body,
       snapshot.checksum AS body_checksum, snapshot.seq AS snapshot_seq, snapshot.event_checksum,
       NULL::text AS command_id, false AS is_corrupted
  FROM noetl.execution AS execution
  LEFT JOIN noetl.snapshot AS snapshot USING (execution_id)
 WHERE execution_id = :execution_id
UNION ALL
SELECT 'log', seq, checksum, events, NULL, NULL, NULL, NULL, false
  FROM noetl.log
 WHERE execution_id = :execution_id
   AND seq > coalesce((SELECT snapshot.seq FROM noetl.snapshot AS snapshot
                        WHERE snapshot.execution_id = :execution_id), 0)
UNION ALL
SELECT 'command', position, checksum, body, NULL, NULL, NULL, command_id, is_corrupted
  FROM noetl.queue
 WHERE execution_id = :execution_id

-- log_page --
SELECT seq, events, checksum
  FROM noetl.log
 WHERE execution_id = :execution_id AND seq > :after
 ORDER BY seq
 LIMIT :rows

-- openings --
-- The first row of each log.
SELECT asked.execution_id, first.events
  FROM unnest(:executions::text[]) AS asked (execution_id)
 CROSS JOIN LATERAL (
    SELECT events FROM noetl.log AS log
     WHERE log.execution_id = asked.execution_id
     ORDER BY seq
     LIMIT 1
 ) AS first
