-- Every statement this store sends, by name. `?` where many rows are sent at once.

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
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

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

-- set_var --
INSERT INTO noetl_transient (execution_id, name, value) VALUES (?, ?, ?)
    ON CONFLICT DO UPDATE SET value = excluded.value

-- delete_var --
DELETE FROM noetl_transient WHERE execution_id = ? AND name = ?

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

-- put_slot --
INSERT INTO noetl_slot (execution_id, name, capacity, held, replaces, priority, requested_at)
VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET held = excluded.held

-- free_slots --
DELETE FROM noetl_slot WHERE execution_id = ?

-- slot_holders --
-- Who has, or wants, a slot of these limits.
SELECT slot.execution_id, slot.name, slot.capacity, slot.held, execution.path
  FROM noetl_slot AS slot
  JOIN noetl_execution AS execution USING (execution_id)
 WHERE slot.name IN (SELECT value FROM json_each(:names))
   AND execution.status IN ('PENDING', 'RUNNING', 'PAUSED')
 ORDER BY slot.name, slot.held DESC, slot.priority DESC, slot.requested_at, slot.execution_id
 LIMIT :limit

-- admissible --
-- Those that wait and whose every limit has room: of each limit as many as it has room for.
WITH free AS MATERIALIZED (
    SELECT waiting.name,
           waiting.capacity - (SELECT count(*)
                                 FROM noetl_slot AS holder
                                 JOIN noetl_execution AS running USING (execution_id)
                                WHERE holder.name = waiting.name AND holder.held = 1
                                  AND running.status IN ('RUNNING', 'PAUSED')) AS room
      FROM (SELECT name, max(capacity) AS capacity
              FROM noetl_slot WHERE held = 0 GROUP BY name) AS waiting
), possible AS (
    SELECT waiting.execution_id, waiting.priority, waiting.requested_at, free.room,
           row_number() OVER (PARTITION BY waiting.name
                              ORDER BY waiting.priority DESC, waiting.requested_at,
                                       waiting.execution_id) AS place
      FROM free
      JOIN noetl_slot AS waiting ON waiting.name = free.name AND waiting.held = 0
     WHERE free.room > 0
       AND NOT EXISTS (SELECT 1 FROM noetl_slot AS other
                         JOIN free AS taken ON taken.name = other.name AND taken.room <= 0
                        WHERE other.execution_id = waiting.execution_id)
)
SELECT execution_id
  FROM possible
 WHERE place <= room
 GROUP BY execution_id, priority, requested_at
 ORDER BY priority DESC, requested_at, execution_id
 LIMIT :limit

-- displaced --
-- Those that a newer one replaces: more than the limit allows are newer, and one of these waits.
SELECT older.execution_id, min(newer.execution_id) AS by
  FROM noetl_slot AS newest
  JOIN noetl_slot AS older
    ON older.name = newest.name AND (older.requested_at, older.execution_id)
                                    < (newest.requested_at, newest.execution_id)
  JOIN noetl_slot AS newer
    ON newer.name = older.name AND (newer.requested_at, newer.execution_id)
                                   > (older.requested_at, older.execution_id)
 WHERE newest.held = 0 AND newest.replaces = 1
 GROUP BY older.execution_id, older.name, older.capacity
HAVING count(DISTINCT newer.execution_id) >= older.capacity
 LIMIT :limit

-- put_snapshot --
INSERT INTO noetl_snapshot (execution_id, seq, event_checksum, body, checksum)
VALUES (?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET seq = excluded.seq, event_checksum = excluded.event_checksum,
       body = excluded.body, checksum = excluded.checksum

-- snapshot --
SELECT seq, event_checksum, body, checksum FROM noetl_snapshot WHERE execution_id = ?

-- log_after --
SELECT seq, events, checksum FROM noetl_log WHERE execution_id = ? AND seq > ? ORDER BY seq

-- log_before --
-- The last row whose events were all before.
SELECT seq, checksum FROM noetl_log
 WHERE execution_id = ? AND seq <= ?
 ORDER BY seq DESC
 LIMIT 1

-- commands_to_verify --
SELECT command_id, body, checksum FROM noetl_lease WHERE execution_id = :execution_id
UNION ALL
SELECT command_id, body, checksum FROM noetl_queue WHERE execution_id = :execution_id

-- summary --
SELECT execution_id, path, version, digest, status, requested_at, ended_at,
       parent_execution_id, idempotency_key, current_steps, error, labels,
       failed_step, waits
  FROM noetl_execution
 WHERE execution_id = ?

-- summary_by_key --
SELECT execution_id, path, version, digest, status, requested_at, ended_at,
       parent_execution_id, idempotency_key, current_steps, error, labels,
       failed_step, waits
  FROM noetl_execution
 WHERE idempotency_key = ?

-- summaries --
-- Newest first. The conditions of a query stand at the mark; so in the next three.
SELECT execution_id, path, version, digest, status, requested_at, ended_at,
       parent_execution_id, idempotency_key, current_steps, error, labels,
       failed_step, waits
  FROM noetl_execution
 WHERE (requested_at, execution_id) < (:before_at, :before_id) /* conditions */
 ORDER BY requested_at DESC, execution_id DESC
 LIMIT :limit

-- label_counts --
-- How many executions have each value of a label.
SELECT value, count(*) AS executions
  FROM noetl_label
 WHERE name = :label AND requested_at >= :since
 GROUP BY value
 ORDER BY executions DESC, value
 LIMIT :limit

-- executions_count --
SELECT count(*) AS count FROM noetl_execution WHERE true /* conditions */

-- executions_span --
SELECT min(requested_at) AS first, max(requested_at) AS last
  FROM noetl_execution
 WHERE true /* conditions */

-- executions_histogram --
-- In any order: to sort all rows first would take longer than to count them.
SELECT CAST((requested_at - :begin) / :width AS INTEGER) AS bucket, status,
       count(*) AS count
  FROM noetl_execution
 WHERE requested_at >= :begin AND requested_at < :end /* conditions */
 GROUP BY 1, 2

-- where_status --
status = :value

-- where_waiting --
status = 'RUNNING' AND waits <> ''

-- where_waits --
status = 'RUNNING' AND waits = :value

-- where_waits_unknown --
status = 'RUNNING' AND waits IS NULL

-- where_path --
path = :value

-- where_path_like --
path GLOB :glob

-- where_took_over --
ended_at - requested_at > :value OR ended_at IS NULL AND :now - requested_at > :value

-- where_took_under --
ended_at - requested_at < :value OR ended_at IS NULL AND :now - requested_at < :value

-- where_since --
requested_at >= :value

-- where_until --
requested_at < :value

-- where_version --
version = :value

-- where_version_over --
version >= :value

-- where_version_under --
version <= :value

-- where_parent --
parent_execution_id = :value

-- where_no_parent --
parent_execution_id IS NULL

-- where_any_parent --
parent_execution_id IS NOT NULL

-- where_id --
execution_id LIKE :begin ESCAPE '\' OR execution_id LIKE :end ESCAPE '\'

-- where_exact_id --
execution_id = :value

-- where_step --
failed_step = :value OR current_steps LIKE :within ESCAPE '\'

-- where_error --
error LIKE :within ESCAPE '\'

-- where_any_error --
error IS NOT NULL

-- where_label --
execution_id IN (SELECT execution_id FROM noetl_label WHERE name = :key AND value = :value)

-- where_any_label --
execution_id IN (SELECT execution_id FROM noetl_label WHERE name = :key)

-- where_text --
path LIKE :within ESCAPE '\' OR error LIKE :within ESCAPE '\'

-- openings --
-- The first row of each log.
SELECT log.execution_id, log.events
  FROM json_each(:executions) AS asked
  JOIN noetl_log AS log ON log.execution_id = asked.value
 WHERE log.seq = (SELECT min(seq) FROM noetl_log AS one WHERE one.execution_id = asked.value)

-- heads --
SELECT execution_id, seq
  FROM noetl_execution
 WHERE execution_id IN (SELECT value FROM json_each(:executions))

-- unfinished --
SELECT execution_id
  FROM noetl_execution
 WHERE status IN ('PENDING', 'RUNNING', 'PAUSED')
 ORDER BY requested_at, execution_id

-- free_commands --
-- Those of the highest priority, and of these the ones whose turn it is. Those of paused executions wait until they are resumed.
SELECT position, body, checksum
  FROM noetl_queue
 WHERE pool = :pool AND is_corrupted = 0
   AND NOT EXISTS (SELECT 1 FROM noetl_execution AS paused
                    WHERE paused.execution_id = noetl_queue.execution_id
                      AND paused.status = 'PAUSED')
 ORDER BY priority DESC, turn, position
 LIMIT :limit

-- free_commands_of --
-- The same, of a few executions or commands.
SELECT position, body, checksum
  FROM noetl_queue
 WHERE (:executions IS NULL OR execution_id IN (SELECT value FROM json_each(:executions)))
   AND (:commands IS NULL OR command_id IN (SELECT value FROM json_each(:commands)))
   AND pool = :pool AND is_corrupted = 0
   AND NOT EXISTS (SELECT 1 FROM noetl_execution AS paused
                    WHERE paused.execution_id = noetl_queue.execution_id
                      AND paused.status = 'PAUSED')
 ORDER BY priority DESC, turn, position
 LIMIT :limit

-- free_pools --
-- One step through the index per pool, however many commands wait.
WITH RECURSIVE found (pool) AS (
    SELECT min(pool) FROM noetl_queue WHERE is_corrupted = 0
    UNION ALL
    SELECT (SELECT min(pool) FROM noetl_queue
             WHERE pool > found.pool AND is_corrupted = 0)
      FROM found
     WHERE found.pool IS NOT NULL
)
SELECT pool, (SELECT turn FROM noetl_queue
               WHERE pool = found.pool AND is_corrupted = 0
               ORDER BY priority DESC, turn, position
               LIMIT 1)
  FROM found
 WHERE pool IS NOT NULL

-- queue_sizes --
SELECT pool, count(*) - count(worker_id), count(worker_id) FROM noetl_command GROUP BY pool

-- lease_command --
INSERT INTO noetl_lease (execution_id, command_id, pool, body, checksum, worker_id, expires_at)
SELECT execution_id, command_id, pool, body, checksum, ?, ? FROM noetl_queue WHERE position = ?

-- leave_queue --
DELETE FROM noetl_queue WHERE position = ?

-- set_aside --
-- A command that is not what was written is nobody's work, and in nobody's way.
UPDATE noetl_queue SET is_corrupted = 1 WHERE position = ?

-- renew_leases --
-- Walks all leases: they are few, and another index would cost every delivery.
UPDATE noetl_lease
   SET expires_at = :expires_at
 WHERE expires_at > :now AND command_id IN (SELECT value FROM json_each(:commands))
RETURNING command_id

-- holders --
SELECT command_id, execution_id, worker_id
  FROM noetl_lease
 WHERE command_id IN (SELECT value FROM json_each(:commands))

-- lapsed --
SELECT body, checksum, worker_id, expires_at
  FROM noetl_lease
 WHERE expires_at <= :now
 ORDER BY expires_at, execution_id, command_id
 LIMIT :limit

-- open_commands --
SELECT body, checksum, worker_id, expires_at
  FROM noetl_command
 ORDER BY position, expires_at, execution_id, command_id

-- open_commands_of --
SELECT body, checksum, worker_id, expires_at
  FROM noetl_command
 WHERE execution_id = ?
 ORDER BY position, expires_at, command_id

-- due_timers --
SELECT execution_id, timer_id, fires_at
  FROM noetl_timer
 WHERE fires_at <= :now
 ORDER BY fires_at, execution_id, timer_id
 LIMIT :limit

-- timers_of --
SELECT timer_id, fires_at FROM noetl_timer WHERE execution_id = ?

-- next_timer --
SELECT min(fires_at) FROM noetl_timer

-- beat --
INSERT INTO noetl_runtime (
    name, kind, started_at, seen_at, pool, slots, host, version, draining, sandbox
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET kind = excluded.kind, seen_at = excluded.seen_at,
       pool = excluded.pool, slots = excluded.slots, host = excluded.host,
       version = excluded.version, draining = excluded.draining, sandbox = excluded.sandbox

-- runtimes --
SELECT name, kind, started_at, seen_at, pool, slots, host, version, draining, sandbox
  FROM noetl_runtime
 WHERE (:kind IS NULL OR kind = :kind) AND (:since IS NULL OR seen_at >= :since)
 ORDER BY name

-- probe --
UPDATE noetl_installation SET installation_id = installation_id

-- installation --
SELECT installation_id FROM noetl_installation

-- leave --
DELETE FROM noetl_runtime WHERE name = ?

-- put_result --
INSERT INTO noetl_result (execution_id, key, sha256, size, body) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT DO NOTHING

-- result_checksum --
SELECT sha256 FROM noetl_result WHERE execution_id = ? AND key = ?

-- result --
SELECT sha256, size, body FROM noetl_result WHERE execution_id = ? AND key = ?

-- vars --
SELECT name, value FROM noetl_transient WHERE execution_id = ? ORDER BY name

-- put_net --
INSERT INTO noetl_net (digest, body) VALUES (?, ?) ON CONFLICT DO NOTHING

-- net --
SELECT body FROM noetl_net WHERE digest = ?

-- insert_catalog_entry --
INSERT INTO noetl_catalog (
    path, version, catalog_id, kind, digest, content, description, created_at, checksum
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)

-- newest_entry --
SELECT catalog_id, path, version, kind, digest, content, description, created_at, checksum
  FROM noetl_catalog
 WHERE path = ?
 ORDER BY version DESC
 LIMIT 1

-- entry_of_version --
SELECT catalog_id, path, version, kind, digest, content, description, created_at, checksum
  FROM noetl_catalog
 WHERE path = ? AND version = ?

-- entry_of_id --
SELECT catalog_id, path, version, kind, digest, content, description, created_at, checksum
  FROM noetl_catalog
 WHERE catalog_id = ?

-- newest_entries --
SELECT catalog_id, path, version, kind, digest, content, description, created_at, checksum
  FROM noetl_catalog AS entry
 WHERE version = (SELECT max(version) FROM noetl_catalog WHERE path = entry.path)
   AND (:kind IS NULL OR kind = :kind)
   AND substr(path, 1, length(:prefix)) = :prefix
 ORDER BY path

-- put_credential --
INSERT INTO noetl_credential (name, type, data, description, tags, playbooks, created_at, updated_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET type = excluded.type, data = excluded.data,
       description = excluded.description, tags = excluded.tags, playbooks = excluded.playbooks,
       updated_at = excluded.updated_at

-- credential --
SELECT name, type, data, description, tags, playbooks, created_at, updated_at
  FROM noetl_credential
 WHERE name = ?

-- credentials --
SELECT name, type, data, description, tags, playbooks, created_at, updated_at
  FROM noetl_credential
 ORDER BY name

-- reseal_credential --
UPDATE noetl_credential SET data = ? WHERE name = ? AND data = ?

-- delete_credential --
DELETE FROM noetl_credential WHERE name = ?

-- check_structure --
PRAGMA quick_check(20)

-- check_references --
PRAGMA foreign_key_check

-- check_heads --
SELECT execution_id, seq, checksum FROM noetl_execution ORDER BY execution_id

-- check_snapshots --
SELECT execution_id, body, checksum FROM noetl_snapshot ORDER BY execution_id

-- check_commands --
SELECT execution_id, command_id, body, checksum FROM noetl_lease
UNION ALL
SELECT execution_id, command_id, body, checksum FROM noetl_queue

-- check_results --
SELECT execution_id, key FROM noetl_result ORDER BY execution_id, key

-- check_nets --
SELECT digest, body FROM noetl_net ORDER BY digest

-- check_catalog --
SELECT catalog_id, path, version, kind, digest, content, description, created_at, checksum
  FROM noetl_catalog
 ORDER BY path, version

-- ended --
SELECT execution_id, path, status, ended_at
  FROM noetl_execution
 WHERE parent_execution_id IS NULL AND ended_at IS NOT NULL
   AND ended_at < :before AND (ended_at, execution_id) > (:after_at, :after_id)
   AND substr(path, 1, length(:prefix)) = :prefix
 ORDER BY ended_at, execution_id
 LIMIT :limit

-- tree --
-- An execution with all that it called; those that were called last come first.
WITH RECURSIVE tree (execution_id, depth) AS (
    SELECT execution_id, 0 FROM noetl_execution WHERE execution_id = :execution_id
     UNION ALL
    SELECT called.execution_id, tree.depth + 1
      FROM tree
      JOIN noetl_execution AS called ON called.parent_execution_id = tree.execution_id
)
SELECT tree.execution_id,
       execution.ended_at IS NOT NULL,
       EXISTS (SELECT 1 FROM noetl_hold AS hold WHERE hold.execution_id = tree.execution_id),
       EXISTS (
           SELECT 1 FROM noetl_reuse AS reuse
             JOIN noetl_execution AS other ON other.execution_id = reuse.execution_id
            WHERE reuse.source = tree.execution_id
              AND reuse.execution_id NOT IN (SELECT inside.execution_id FROM tree AS inside)
       ),
       execution.seq
  FROM tree
  JOIN noetl_execution AS execution ON execution.execution_id = tree.execution_id
 ORDER BY tree.depth DESC, tree.execution_id

-- forgettable --
SELECT execution_id FROM noetl_execution
 WHERE execution_id IN (SELECT value FROM json_each(?)) AND ended_at IS NOT NULL
   AND execution_id NOT IN (SELECT hold.execution_id FROM noetl_hold AS hold)

-- tally --
INSERT INTO noetl_tally (day, path, status, executions)
SELECT CAST(requested_at / 86400 AS INTEGER) AS day, path, status, count(*)
  FROM noetl_execution
 WHERE execution_id IN (SELECT value FROM json_each(?))
 GROUP BY 1, 2, 3
    ON CONFLICT (day, path, status) DO UPDATE SET executions = executions + excluded.executions

-- forget_results --
DELETE FROM noetl_result WHERE execution_id IN (SELECT value FROM json_each(?))

-- forget_reuse --
DELETE FROM noetl_reuse WHERE execution_id IN (SELECT value FROM json_each(?))

-- forget_executions --
-- What else belongs to them goes with them.
DELETE FROM noetl_execution WHERE execution_id IN (SELECT value FROM json_each(?))

-- is_filed --
SELECT 1 FROM noetl_result WHERE sha256 = ? AND body IS NULL LIMIT 1

-- forgotten --
SELECT day, path, status, executions FROM noetl_tally WHERE day >= ? ORDER BY day, path, status

-- reuse --
INSERT INTO noetl_reuse (execution_id, source) VALUES (?, ?) ON CONFLICT DO NOTHING

-- hold --
INSERT INTO noetl_hold (execution_id, note, who, at)
SELECT execution_id, ?, ?, ? FROM noetl_execution WHERE execution_id = ?
    ON CONFLICT (execution_id) DO UPDATE SET note = excluded.note, who = excluded.who,
       at = excluded.at

-- release --
DELETE FROM noetl_hold WHERE execution_id = ?

-- holds --
SELECT execution_id, note, who, at FROM noetl_hold ORDER BY at DESC, execution_id

-- versions --
-- Versions of a path, newest first.
SELECT catalog_id, path, version, kind, digest, content, description, created_at, checksum
  FROM noetl_catalog
 WHERE path = :path AND version < :before
 ORDER BY version DESC
 LIMIT :limit

-- waiting_commands --
-- Those that no worker has, oldest first.
SELECT body, checksum
  FROM noetl_queue
 WHERE is_corrupted = 0
 ORDER BY position
 LIMIT :limit

-- views --
SELECT name, q, columns, owner, updated_at FROM noetl_view ORDER BY name

-- put_view --
INSERT INTO noetl_view (name, q, columns, owner, updated_at)
VALUES (:name, :q, :columns, :owner, :updated_at)
    ON CONFLICT (name) DO UPDATE SET q = excluded.q, columns = excluded.columns,
       owner = excluded.owner, updated_at = excluded.updated_at

-- delete_view --
DELETE FROM noetl_view WHERE name = :name
