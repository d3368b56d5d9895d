-- Every statement this store sends, by name. Each is one transaction unless it says otherwise.

-- heads_to_chain --
-- Where logs end.
SELECT execution_id, seq, checksum
  FROM noetl.execution
 WHERE execution_id = ANY(%(executions)s)

-- commit --
-- All that most decisions change, in one round trip. An execution is kept if its log still ends
-- where the decision began: then, and only then, the rows that belong to it are written.
WITH given AS MATERIALIZED (
    SELECT *
      FROM json_to_recordset(%(executions)s::json) AS given (
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
       AND stored.execution_id = ANY(%(ids)s) -- So that a plan made while the table was small
       AND given.seq_before > 0               -- does not read all of it when it is large.
       AND stored.seq = given.seq_before
       AND stored.checksum = given.checksum_before
    RETURNING stored.execution_id
), kept AS MATERIALIZED (
    SELECT execution_id FROM created UNION ALL SELECT execution_id FROM advanced
), logged AS (
    INSERT INTO noetl.log (execution_id, seq, events, checksum)
    SELECT execution_id, seq, decode(events, 'base64'), checksum
      FROM json_to_recordset(%(log)s::json) AS row (
        execution_id text, seq bigint, events text, checksum bigint
      )
     WHERE execution_id IN (SELECT execution_id FROM kept)
), queued AS (
    INSERT INTO noetl.queue (
        execution_id, command_id, pool, priority, turn, home, body, checksum, worker_id,
        lease_expires_at
    )
    SELECT execution_id, command_id, pool, priority, turn, %(home)s::text, decode(body, 'base64'),
           checksum, worker_id, lease_expires_at
      FROM json_to_recordset(%(commands)s::json) AS command (
        number integer, execution_id text, command_id text, pool text, priority integer,
        turn bigint, body text, checksum bigint, worker_id text, lease_expires_at double precision
      )
     WHERE execution_id IN (SELECT execution_id FROM kept)
     ORDER BY number
), closed AS (
    DELETE FROM noetl.queue AS stored
     USING json_to_recordset(%(closed)s::json) AS command (execution_id text, id text)
     WHERE stored.execution_id = command.execution_id
       AND stored.command_id = command.id
       AND command.execution_id IN (SELECT execution_id FROM kept)
), timed AS (
    INSERT INTO noetl.timer (execution_id, timer_id, fires_at)
    SELECT execution_id, timer_id, fires_at
      FROM json_to_recordset(%(timers)s::json) AS timer (
        execution_id text, timer_id text, fires_at double precision
      )
     WHERE execution_id IN (SELECT execution_id FROM kept)
        ON CONFLICT (execution_id, timer_id) DO UPDATE SET fires_at = excluded.fires_at
), cleared AS (
    DELETE FROM noetl.timer AS stored
     USING json_to_recordset(%(timers_cleared)s::json) AS timer (execution_id text, id text)
     WHERE stored.execution_id = timer.execution_id
       AND stored.timer_id = timer.id
       AND timer.execution_id IN (SELECT execution_id FROM kept)
), audited AS (
    INSERT INTO noetl.audit (at, who, action, target, execution_id, details)
    SELECT at, who, action, target, execution_id, details
      FROM json_to_recordset(%(audit)s::json) AS entry (
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
       SET seq = %(seq)s, checksum = %(checksum)s,
           status = coalesce(%(status)s::text, status),
           ended_at = CASE WHEN %(status)s::text IS NULL THEN ended_at
                      ELSE %(ended_at)s::double precision END,
           current_steps = coalesce(%(current_steps)s::text, current_steps),
           error = CASE WHEN %(status)s::text IS NULL THEN error ELSE %(error)s::text END,
           failed_step = coalesce(%(failed_step)s::text, failed_step),
           waits = coalesce(%(waits)s::text, waits)
     WHERE execution_id = %(execution_id)s
       AND seq = %(seq_before)s
       AND checksum = %(checksum_before)s
    RETURNING execution_id
), logged AS (
    INSERT INTO noetl.log (execution_id, seq, events, checksum)
    SELECT execution_id, %(seq)s::bigint, %(events)s::bytea, %(checksum)s::bigint
      FROM kept
     WHERE %(events)s::bytea IS NOT NULL
), queued AS (
    INSERT INTO noetl.queue (
        execution_id, command_id, pool, priority, turn, home, body, checksum, worker_id,
        lease_expires_at
    )
    SELECT execution_id, %(command_id)s::text, %(pool)s::text, %(priority)s::integer,
           %(turn)s::bigint, %(home)s::text, %(body)s::bytea, %(body_checksum)s::bigint, %(worker_id)s::text,
           %(lease_expires_at)s::double precision
      FROM kept
     WHERE %(command_id)s::text IS NOT NULL
), closed AS (
    DELETE FROM noetl.queue AS stored
     USING kept
     WHERE stored.execution_id = kept.execution_id
       AND stored.command_id = %(closed)s::text
)
SELECT execution_id FROM kept

-- lock_slots --
-- Limits are taken up by one transaction at a time; held to its end. In this order everywhere.
SELECT pg_advisory_xact_lock(hashtextextended('noetl.slot ' || %(name)s, 0))

-- full_slots --
-- The limits of an execution that leave it no room. A new one also lets pass those that wait.
SELECT wanted.name
  FROM unnest(%(names)s::text[], %(capacities)s::integer[]) AS wanted (name, capacity)
 WHERE (SELECT count(*)
          FROM noetl.slot AS holder
          JOIN noetl.execution AS running USING (execution_id)
         WHERE holder.name = wanted.name AND holder.held
           AND holder.execution_id <> %(execution_id)s
           AND running.status IN ('RUNNING', 'PAUSED')) >= wanted.capacity
    OR (%(is_new)s AND EXISTS (SELECT FROM noetl.slot AS waiting
                                WHERE waiting.name = wanted.name AND NOT waiting.held
                                  AND waiting.execution_id <> %(execution_id)s
                                  AND waiting.priority >= %(priority)s))

-- put_slot --
INSERT INTO noetl.slot (execution_id, name, capacity, held, replaces, priority, requested_at)
VALUES (%(execution_id)s, %(name)s, %(capacity)s, %(held)s, %(replaces)s, %(priority)s,
        %(requested_at)s)
    ON CONFLICT (execution_id, name) DO UPDATE SET held = excluded.held

-- free_slots --
DELETE FROM noetl.slot WHERE execution_id = %(execution_id)s

-- slot_holders --
-- Who has, or wants, a slot of these limits.
SELECT slot.execution_id, slot.name, slot.capacity, slot.held, execution.path
  FROM noetl.slot AS slot
  JOIN noetl.execution AS execution USING (execution_id)
 WHERE slot.name = ANY(%(names)s) AND execution.status IN ('PENDING', 'RUNNING', 'PAUSED')
 ORDER BY slot.name, slot.held DESC, slot.priority DESC, slot.requested_at, slot.execution_id
 LIMIT %(limit)s

-- admissible --
-- Those that wait and whose every limit has room: of each limit as many as it has room for.
WITH free AS MATERIALIZED (
    SELECT waiting.name,
           waiting.capacity - (SELECT count(*)
                                 FROM noetl.slot AS holder
                                 JOIN noetl.execution AS running USING (execution_id)
                                WHERE holder.name = waiting.name AND holder.held
                                  AND running.status IN ('RUNNING', 'PAUSED')) AS room
      FROM (SELECT name, max(capacity) AS capacity
              FROM noetl.slot WHERE NOT held GROUP BY name) AS waiting
), possible AS (
    SELECT waiting.execution_id, waiting.priority, waiting.requested_at, free.room,
           row_number() OVER (PARTITION BY waiting.name
                              ORDER BY waiting.priority DESC, waiting.requested_at,
                                       waiting.execution_id) AS place
      FROM free
      JOIN noetl.slot AS waiting ON waiting.name = free.name AND NOT waiting.held
     WHERE free.room > 0
       AND NOT EXISTS (SELECT FROM noetl.slot AS other
                         JOIN free AS taken ON taken.name = other.name AND taken.room <= 0
                        WHERE other.execution_id = waiting.execution_id)
)
SELECT execution_id
  FROM possible
 WHERE place <= room
 GROUP BY execution_id, priority, requested_at
 ORDER BY priority DESC, requested_at, execution_id
 LIMIT %(limit)s

-- displaced --
-- Those that a newer one replaces: more than the limit allows are newer, and one of these waits.
SELECT older.execution_id, min(newer.execution_id) AS by
  FROM noetl.slot AS newest
  JOIN noetl.slot AS older
    ON older.name = newest.name AND (older.requested_at, older.execution_id)
                                    < (newest.requested_at, newest.execution_id)
  JOIN noetl.slot AS newer
    ON newer.name = older.name AND (newer.requested_at, newer.execution_id)
                                   > (older.requested_at, older.execution_id)
 WHERE NOT newest.held AND newest.replaces
 GROUP BY older.execution_id, older.name, older.capacity
HAVING count(DISTINCT newer.execution_id) >= older.capacity
 LIMIT %(limit)s

-- put_snapshot --
INSERT INTO noetl.snapshot (execution_id, seq, event_checksum, body, checksum)
VALUES (%(execution_id)s, %(seq)s, %(event_checksum)s, %(body)s, %(checksum)s)
    ON CONFLICT (execution_id) DO UPDATE SET seq = excluded.seq,
       event_checksum = excluded.event_checksum, body = excluded.body,
       checksum = excluded.checksum

-- set_var --
INSERT INTO noetl.transient (execution_id, name, value)
VALUES (%(execution_id)s, %(name)s, %(value)s)
    ON CONFLICT (execution_id, name) DO UPDATE SET value = excluded.value

-- delete_var --
DELETE FROM noetl.transient WHERE execution_id = %(execution_id)s AND name = %(name)s

-- load --
-- All that a state is made of, as it is at one moment, in one round trip: the end of the log with
-- the snapshot, the rows after it, and the commands that are open.
SELECT 'end' AS part, execution.seq, execution.checksum, snapshot.body,
       snapshot.checksum AS body_checksum, snapshot.seq AS snapshot_seq, snapshot.event_checksum,
       NULL::text AS command_id, false AS is_corrupted
  FROM noetl.execution AS execution
  LEFT JOIN noetl.snapshot AS snapshot USING (execution_id)
 WHERE execution_id = %(execution_id)s
UNION ALL
SELECT 'log', seq, checksum, events, NULL, NULL, NULL, NULL, false
  FROM noetl.log
 WHERE execution_id = %(execution_id)s
   AND seq > coalesce((SELECT snapshot.seq FROM noetl.snapshot AS snapshot
                        WHERE snapshot.execution_id = %(execution_id)s), 0)
UNION ALL
SELECT 'command', position, checksum, body, NULL, NULL, NULL, command_id, is_corrupted
  FROM noetl.queue
 WHERE execution_id = %(execution_id)s

-- log_between --
SELECT seq, events, checksum
  FROM noetl.log
 WHERE execution_id = %(execution_id)s AND seq > %(after)s AND seq <= %(until)s
 ORDER BY seq

-- log_page --
SELECT seq, events, checksum
  FROM noetl.log
 WHERE execution_id = %(execution_id)s AND seq > %(after)s
 ORDER BY seq
 LIMIT %(rows)s

-- log_before --
-- The last row whose events were all before.
SELECT seq, checksum
  FROM noetl.log
 WHERE execution_id = %(execution_id)s AND seq <= %(after)s
 ORDER BY seq DESC
 LIMIT 1

-- summary --
SELECT execution_id, path, version, digest, status, requested_at, ended_at,
       parent_execution_id, idempotency_key, current_steps, error, labels,
       failed_step, waits
  FROM noetl.execution
 WHERE execution_id = %(execution_id)s

-- summary_by_key --
SELECT execution_id, path, version, digest, status, requested_at, ended_at,
       parent_execution_id, idempotency_key, current_steps, error, labels,
       failed_step, waits
  FROM noetl.execution
 WHERE idempotency_key = %(key)s

-- summaries --
-- Newest first. The conditions of a query stand at the mark; so in the next three.
SELECT execution_id, path, version, digest, status, requested_at, ended_at,
       parent_execution_id, idempotency_key, current_steps, error, labels,
       failed_step, waits
  FROM noetl.execution
 WHERE (requested_at, execution_id) < (%(before_at)s, %(before_id)s) /* conditions */
 ORDER BY requested_at DESC, execution_id DESC
 LIMIT %(limit)s

-- label_counts --
-- How many executions have each value of a label.
SELECT value, count(*) AS executions
  FROM noetl.label
 WHERE name = %(label)s AND requested_at >= %(since)s
 GROUP BY value
 ORDER BY executions DESC, value
 LIMIT %(limit)s

-- executions_count --
SELECT count(*) AS count FROM noetl.execution WHERE true /* conditions */

-- executions_span --
SELECT min(requested_at) AS first, max(requested_at) AS last
  FROM noetl.execution
 WHERE true /* conditions */

-- executions_histogram --
-- In any order: to sort all rows first would take longer than to count them.
SELECT floor((requested_at - %(begin)s) / %(width)s)::integer AS bucket, status,
       count(*) AS count
  FROM noetl.execution
 WHERE requested_at >= %(begin)s AND requested_at < %(end)s /* conditions */
 GROUP BY 1, 2

-- where_status --
status = %(value)s

-- where_waiting --
status = 'RUNNING' AND waits <> ''

-- where_waits --
status = 'RUNNING' AND waits = %(value)s

-- where_waits_unknown --
status = 'RUNNING' AND waits IS NULL

-- where_path --
path = %(value)s

-- where_path_like --
path LIKE %(glob)s ESCAPE '\'

-- where_took_over --
ended_at - requested_at > %(value)s OR ended_at IS NULL AND %(now)s - requested_at > %(value)s

-- where_took_under --
ended_at - requested_at < %(value)s OR ended_at IS NULL AND %(now)s - requested_at < %(value)s

-- where_since --
requested_at >= %(value)s

-- where_until --
requested_at < %(value)s

-- where_version --
version = %(value)s

-- where_version_over --
version >= %(value)s

-- where_version_under --
version <= %(value)s

-- where_parent --
parent_execution_id = %(value)s

-- where_no_parent --
parent_execution_id IS NULL

-- where_any_parent --
parent_execution_id IS NOT NULL

-- where_id --
execution_id LIKE %(begin)s ESCAPE '\' OR execution_id LIKE %(end)s ESCAPE '\'

-- where_exact_id --
execution_id = %(value)s

-- where_step --
failed_step = %(value)s OR current_steps LIKE %(within)s ESCAPE '\'

-- where_error --
error ILIKE %(within)s ESCAPE '\'

-- where_any_error --
error IS NOT NULL

-- where_label --
execution_id IN (SELECT execution_id FROM noetl.label WHERE name = %(key)s AND value = %(value)s)

-- where_any_label --
execution_id IN (SELECT execution_id FROM noetl.label WHERE name = %(key)s)

-- where_text --
path ILIKE %(within)s ESCAPE '\' OR error ILIKE %(within)s ESCAPE '\'

-- openings --
-- The first row of each log.
SELECT asked.execution_id, first.events
  FROM unnest(%(executions)s::text[]) AS asked (execution_id)
 CROSS JOIN LATERAL (
    SELECT events FROM noetl.log AS log
     WHERE log.execution_id = asked.execution_id
     ORDER BY seq
     LIMIT 1
 ) AS first

-- unfinished --
SELECT execution_id
  FROM noetl.execution
 WHERE status IN ('PENDING', 'RUNNING', 'PAUSED')
 ORDER BY requested_at, execution_id

-- claim --
-- Lease free commands: those of the highest priority, and of these the ones whose turn it is. What another server is claiming at this moment is passed over, and those of
-- paused executions wait until they are resumed.
WITH free AS (
    SELECT execution_id, command_id
      FROM noetl.queue AS waiting
     WHERE pool = %(pool)s AND worker_id IS NULL AND NOT is_corrupted
       AND NOT EXISTS (SELECT FROM noetl.execution AS paused
                        WHERE paused.execution_id = waiting.execution_id
                          AND paused.status = 'PAUSED')
     ORDER BY priority DESC, turn, position
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED
)
UPDATE noetl.queue AS stored
   SET worker_id = %(worker_id)s, lease_expires_at = %(expires_at)s
  FROM free
 WHERE stored.execution_id = free.execution_id AND stored.command_id = free.command_id
RETURNING stored.execution_id, stored.command_id, stored.priority, stored.turn, stored.position,
          stored.body, stored.checksum

-- claim_own --
-- The same, of those that this process opened; none of them while one of a higher priority waits.
WITH free AS (
    SELECT execution_id, command_id
      FROM noetl.queue AS waiting
     WHERE pool = %(pool)s AND home = %(home)s AND worker_id IS NULL AND NOT is_corrupted
       AND priority >= (SELECT first.priority
                          FROM noetl.queue AS first
                         WHERE pool = %(pool)s AND worker_id IS NULL AND NOT is_corrupted
                           AND NOT EXISTS (SELECT FROM noetl.execution AS paused
                                            WHERE paused.execution_id = first.execution_id
                                              AND paused.status = 'PAUSED')
                         ORDER BY priority DESC, turn, position
                         LIMIT 1)
       AND NOT EXISTS (SELECT FROM noetl.execution AS paused
                        WHERE paused.execution_id = waiting.execution_id
                          AND paused.status = 'PAUSED')
     ORDER BY priority DESC, turn, position
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED
)
UPDATE noetl.queue AS stored
   SET worker_id = %(worker_id)s, lease_expires_at = %(expires_at)s
  FROM free
 WHERE stored.execution_id = free.execution_id AND stored.command_id = free.command_id
RETURNING stored.execution_id, stored.command_id, stored.priority, stored.turn, stored.position,
          stored.body, stored.checksum

-- claim_of --
-- The same, of a few executions or commands.
WITH free AS (
    SELECT execution_id, command_id
      FROM noetl.queue AS waiting
     WHERE (%(executions)s::text[] IS NULL OR execution_id = ANY(%(executions)s))
       AND (%(commands)s::text[] IS NULL OR command_id = ANY(%(commands)s))
       AND pool = %(pool)s AND worker_id IS NULL AND NOT is_corrupted
       AND NOT EXISTS (SELECT FROM noetl.execution AS paused
                        WHERE paused.execution_id = waiting.execution_id
                          AND paused.status = 'PAUSED')
     ORDER BY priority DESC, turn, position
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED
)
UPDATE noetl.queue AS stored
   SET worker_id = %(worker_id)s, lease_expires_at = %(expires_at)s
  FROM free
 WHERE stored.execution_id = free.execution_id AND stored.command_id = free.command_id
RETURNING stored.execution_id, stored.command_id, stored.priority, stored.turn, stored.position,
          stored.body, stored.checksum

-- set_aside --
-- A command that is not what was written is nobody's work, and in nobody's way.
UPDATE noetl.queue
   SET worker_id = NULL, lease_expires_at = NULL, is_corrupted = true
 WHERE execution_id = %(execution_id)s AND command_id = %(command_id)s

-- renew_leases --
-- Walks the leases that hold: they are few, and another index would cost every delivery.
UPDATE noetl.queue
   SET lease_expires_at = %(expires_at)s
 WHERE worker_id IS NOT NULL AND lease_expires_at > %(now)s
   AND command_id = ANY(%(commands)s)
RETURNING command_id

-- holders --
SELECT command_id, execution_id, worker_id
  FROM noetl.queue
 WHERE worker_id IS NOT NULL AND command_id = ANY(%(commands)s)

-- lapsed --
SELECT body, checksum, worker_id, lease_expires_at
  FROM noetl.queue
 WHERE worker_id IS NOT NULL AND lease_expires_at <= %(now)s AND NOT is_corrupted
 ORDER BY lease_expires_at, position
 LIMIT %(limit)s

-- free_pools --
-- One step through the index per pool, however many commands wait.
WITH RECURSIVE found (pool) AS (
    SELECT min(pool) FROM noetl.queue WHERE worker_id IS NULL AND NOT is_corrupted
    UNION ALL
    SELECT (SELECT min(queue.pool) FROM noetl.queue AS queue
             WHERE queue.pool > found.pool AND worker_id IS NULL AND NOT is_corrupted)
      FROM found
     WHERE found.pool IS NOT NULL
)
SELECT pool, (SELECT turn FROM noetl.queue AS queue
               WHERE queue.pool = found.pool AND worker_id IS NULL AND NOT is_corrupted
               ORDER BY priority DESC, turn, position
               LIMIT 1) AS turn
  FROM found
 WHERE pool IS NOT NULL

-- queue_sizes --
SELECT pool, count(*) FILTER (WHERE worker_id IS NULL) AS free, count(worker_id) AS leased
  FROM noetl.queue
 WHERE NOT is_corrupted
 GROUP BY pool

-- open_commands --
SELECT command_id, execution_id, body, checksum, is_corrupted, worker_id, lease_expires_at
  FROM noetl.queue
 ORDER BY position

-- open_commands_of --
SELECT command_id, execution_id, body, checksum, is_corrupted, worker_id, lease_expires_at
  FROM noetl.queue
 WHERE execution_id = %(execution_id)s
 ORDER BY position

-- due_timers --
SELECT execution_id, timer_id, fires_at
  FROM noetl.timer
 WHERE fires_at <= %(now)s
 ORDER BY fires_at, execution_id, timer_id
 LIMIT %(limit)s

-- timers_of --
SELECT timer_id, fires_at FROM noetl.timer WHERE execution_id = %(execution_id)s

-- next_timer --
SELECT min(fires_at) AS fires_at FROM noetl.timer

-- time --
SELECT extract(epoch FROM clock_timestamp())::double precision AS now

-- beat --
INSERT INTO noetl.runtime (
    name, kind, started_at, seen_at, pool, slots, host, version, draining, sandbox
) VALUES (
    %(name)s, %(kind)s, %(started_at)s, %(seen_at)s, %(pool)s, %(slots)s, %(host)s, %(version)s,
    %(draining)s, %(sandbox)s
)
    ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, seen_at = excluded.seen_at,
       pool = excluded.pool, slots = excluded.slots, host = excluded.host,
       version = excluded.version, draining = excluded.draining, sandbox = excluded.sandbox

-- runtimes --
SELECT name, kind, started_at, seen_at, pool, slots, host, version, draining, sandbox
  FROM noetl.runtime
 WHERE (%(kind)s::text IS NULL OR kind = %(kind)s)
   AND (%(since)s::double precision IS NULL OR seen_at >= %(since)s)
 ORDER BY name

-- installation --
SELECT installation_id FROM noetl.installation

-- leave --
DELETE FROM noetl.runtime WHERE name = %(name)s

-- put_result --
INSERT INTO noetl.result (execution_id, key, sha256, size, body)
VALUES (%(execution_id)s, %(key)s, %(sha256)s, %(size)s, %(body)s)
    ON CONFLICT (execution_id, key) DO NOTHING

-- result_checksum --
SELECT sha256, size FROM noetl.result WHERE execution_id = %(execution_id)s AND key = %(key)s

-- result --
SELECT sha256, body FROM noetl.result WHERE execution_id = %(execution_id)s AND key = %(key)s

-- result_is_whole --
SELECT encode(sha256(body), 'hex') = sha256 AS is_whole
  FROM noetl.result WHERE execution_id = %(execution_id)s AND key = %(key)s

-- result_piece --
SELECT substring(body FROM %(first)s FOR %(count)s) AS piece
  FROM noetl.result WHERE execution_id = %(execution_id)s AND key = %(key)s

-- vars --
SELECT name, value FROM noetl.transient WHERE execution_id = %(execution_id)s ORDER BY name

-- put_net --
INSERT INTO noetl.net (digest, body) VALUES (%(digest)s, %(body)s) ON CONFLICT DO NOTHING

-- net --
SELECT body FROM noetl.net WHERE digest = %(digest)s

-- lock_path --
-- Versions of a path are counted by one at a time; held to the end of the transaction.
SELECT pg_advisory_xact_lock(hashtextextended('noetl.catalog ' || %(path)s, 0))

-- insert_catalog_entry --
INSERT INTO noetl.catalog (
    path, version, catalog_id, kind, digest, content, description, created_at, checksum
) VALUES (
    %(path)s, %(version)s, %(catalog_id)s, %(kind)s, %(digest)s, %(content)s, %(description)s,
    %(created_at)s, %(checksum)s
)

-- newest_entry --
SELECT catalog_id, path, version, kind, digest, content, description, created_at, checksum
  FROM noetl.catalog
 WHERE path = %(path)s
 ORDER BY version DESC
 LIMIT 1

-- entry_of_version --
SELECT catalog_id, path, version, kind, digest, content, description, created_at, checksum
  FROM noetl.catalog
 WHERE path = %(path)s AND version = %(version)s

-- entry_of_id --
SELECT catalog_id, path, version, kind, digest, content, description, created_at, checksum
  FROM noetl.catalog
 WHERE catalog_id = %(catalog_id)s

-- newest_entries --
SELECT catalog_id, path, version, kind, digest, content, description, created_at, checksum
  FROM (
        SELECT DISTINCT ON (path) *
          FROM noetl.catalog
         WHERE starts_with(path, %(prefix)s)
         ORDER BY path, version DESC
       ) AS newest
 WHERE (%(kind)s::text IS NULL OR kind = %(kind)s)
 ORDER BY path

-- put_credential --
INSERT INTO noetl.credential (name, type, data, description, tags, playbooks, created_at, updated_at)
VALUES (
    %(name)s, %(type)s, %(data)s, %(description)s, %(tags)s, %(playbooks)s, %(created_at)s,
    %(updated_at)s
)
    ON CONFLICT (name) DO UPDATE SET type = excluded.type, data = excluded.data,
       description = excluded.description, tags = excluded.tags, playbooks = excluded.playbooks,
       updated_at = excluded.updated_at

-- credential --
SELECT name, type, data, description, tags, playbooks, created_at, updated_at
  FROM noetl.credential
 WHERE name = %(name)s

-- credentials --
SELECT name, type, data, description, tags, playbooks, created_at, updated_at
  FROM noetl.credential
 ORDER BY name

-- reseal_credential --
UPDATE noetl.credential SET data = %(new)s WHERE name = %(name)s AND data = %(old)s

-- delete_credential --
DELETE FROM noetl.credential WHERE name = %(name)s

-- check_heads --
SELECT execution_id FROM noetl.execution ORDER BY execution_id

-- check_snapshots --
SELECT execution_id, body, checksum FROM noetl.snapshot ORDER BY execution_id

-- check_results --
SELECT execution_id, key FROM noetl.result ORDER BY execution_id, key

-- check_strays --
-- There are no foreign keys, so look for rows of executions that do not exist.
SELECT DISTINCT execution_id FROM noetl.log
 WHERE NOT EXISTS (
    SELECT FROM noetl.execution WHERE execution.execution_id = log.execution_id
 )
 ORDER BY execution_id

-- check_nets --
SELECT digest, body FROM noetl.net ORDER BY digest

-- check_catalog --
SELECT catalog_id, path, version, kind, digest, content, description, created_at, checksum
  FROM noetl.catalog
 ORDER BY path, version

-- ended --
SELECT execution_id, path, status, ended_at
  FROM noetl.execution
 WHERE parent_execution_id IS NULL AND ended_at IS NOT NULL
   AND ended_at < %(before)s AND (ended_at, execution_id) > (%(after_at)s, %(after_id)s)
   AND starts_with(path, %(prefix)s)
 ORDER BY ended_at, execution_id
 LIMIT %(limit)s

-- tree --
-- An execution with all that it called; those that were called last come first.
WITH RECURSIVE tree (execution_id, depth) AS (
    SELECT execution_id, 0 FROM noetl.execution WHERE execution_id = %(execution_id)s
     UNION ALL
    SELECT called.execution_id, tree.depth + 1
      FROM tree
      JOIN noetl.execution AS called ON called.parent_execution_id = tree.execution_id
)
SELECT tree.execution_id,
       execution.ended_at IS NOT NULL AS has_ended,
       EXISTS (
           SELECT FROM noetl.hold WHERE hold.execution_id = tree.execution_id
       ) AS is_held,
       EXISTS (
           SELECT FROM noetl.reuse
             JOIN noetl.execution AS other ON other.execution_id = reuse.execution_id
            WHERE reuse.source = tree.execution_id
              AND reuse.execution_id NOT IN (SELECT inside.execution_id FROM tree AS inside)
       ) AS is_reused,
       execution.seq
  FROM tree
  JOIN noetl.execution AS execution ON execution.execution_id = tree.execution_id
 ORDER BY tree.depth DESC, tree.execution_id

-- forgettable --
-- Locked in this order by everybody, so that two servers that forget the same do not wait for each
-- other in a circle.
SELECT execution_id FROM noetl.execution
 WHERE execution_id = ANY(%(execution_ids)s) AND ended_at IS NOT NULL
   AND NOT EXISTS (SELECT FROM noetl.hold WHERE hold.execution_id = execution.execution_id)
 ORDER BY execution_id
   FOR UPDATE

-- tally --
INSERT INTO noetl.tally (day, path, status, executions)
SELECT floor(requested_at / 86400)::integer, path, status, count(*)
  FROM noetl.execution
 WHERE execution_id = ANY(%(execution_ids)s)
 GROUP BY 1, 2, 3
 ORDER BY 1, 2, 3
    ON CONFLICT (day, path, status)
    DO UPDATE SET executions = tally.executions + excluded.executions

-- forget_log --
DELETE FROM noetl.log WHERE execution_id = ANY(%(execution_ids)s)

-- forget_results --
DELETE FROM noetl.result WHERE execution_id = ANY(%(execution_ids)s)

-- forget_executions --
-- With all that is small. Nothing refers to what is left but these rows.
WITH snapshots AS (
    DELETE FROM noetl.snapshot WHERE execution_id = ANY(%(execution_ids)s)
), commands AS (
    DELETE FROM noetl.queue WHERE execution_id = ANY(%(execution_ids)s)
), timers AS (
    DELETE FROM noetl.timer WHERE execution_id = ANY(%(execution_ids)s)
), variables AS (
    DELETE FROM noetl.transient WHERE execution_id = ANY(%(execution_ids)s)
), labels AS (
    DELETE FROM noetl.label WHERE execution_id = ANY(%(execution_ids)s)
), reuses AS (
    DELETE FROM noetl.reuse WHERE execution_id = ANY(%(execution_ids)s)
)
DELETE FROM noetl.execution WHERE execution_id = ANY(%(execution_ids)s)

-- forgotten --
SELECT day, path, status, executions
  FROM noetl.tally
 WHERE day >= %(since_day)s
 ORDER BY day, path, status

-- reuse --
INSERT INTO noetl.reuse (execution_id, source) VALUES (%(execution_id)s, %(source)s)
    ON CONFLICT DO NOTHING

-- hold --
INSERT INTO noetl.hold (execution_id, note, who, at)
SELECT execution_id, %(note)s, %(who)s, %(at)s
  FROM noetl.execution
 WHERE execution_id = %(execution_id)s
    ON CONFLICT (execution_id) DO UPDATE SET note = excluded.note, who = excluded.who,
       at = excluded.at

-- release --
DELETE FROM noetl.hold WHERE execution_id = %(execution_id)s

-- holds --
SELECT execution_id, note, who, at FROM noetl.hold ORDER BY at DESC, execution_id

-- versions --
-- Versions of a path, newest first.
SELECT catalog_id, path, version, kind, digest, content, description, created_at, checksum
  FROM noetl.catalog
 WHERE path = %(path)s AND version < %(before)s
 ORDER BY version DESC
 LIMIT %(limit)s

-- waiting_commands --
-- Those that no worker has, oldest first.
SELECT body, checksum
  FROM noetl.queue
 WHERE worker_id IS NULL AND NOT is_corrupted
 ORDER BY position
 LIMIT %(limit)s

-- views --
SELECT name, q, columns, owner, updated_at FROM noetl.view ORDER BY name

-- put_view --
INSERT INTO noetl.view (name, q, columns, owner, updated_at)
VALUES (%(name)s, %(q)s, %(columns)s, %(owner)s, %(updated_at)s)
    ON CONFLICT (name) DO UPDATE SET q = excluded.q, columns = excluded.columns,
       owner = excluded.owner, updated_at = excluded.updated_at

-- delete_view --
DELETE FROM noetl.view WHERE name = %(name)s
