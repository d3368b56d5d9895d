-- Statements about commands and leases.

-- claim --
-- Those of the highest priority, and of these the ones whose turn it is.
SELECT position, body, checksum
  FROM noetl_queue
 WHERE /* is_free */
 /* in_turn */

-- claim_of --
-- The same, of a few commands.
SELECT position, body, checksum
  FROM noetl_queue
 WHERE command_id = ANY(:commands)
   AND /* is_free */
 /* in_turn */

-- free --
SELECT execution_id, command_id, turn
  FROM noetl_queue
 WHERE /* is_free */
 /* in_turn */

-- is_free --
-- What a worker of a pool may be given. Commands of paused executions wait until these are resumed.
pool = :pool AND is_corrupted = 0
   AND NOT EXISTS (SELECT 1 FROM noetl_execution AS paused
                    WHERE paused.execution_id = noetl_queue.execution_id
                      AND paused.status = 'PAUSED')

-- in_turn --
ORDER BY priority DESC, turn, position
 LIMIT :limit

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
 WHERE expires_at > :now AND command_id = ANY(:commands)
RETURNING command_id

-- holders --
SELECT command_id, execution_id, worker_id
  FROM noetl_lease
 WHERE command_id = ANY(:commands)

-- lapsed --
SELECT body, checksum, worker_id, expires_at
  FROM noetl_lease
 WHERE expires_at <= :now
 ORDER BY expires_at, execution_id, command_id
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

-- open_commands --
SELECT command_id, body, checksum, 0, worker_id, expires_at
  FROM noetl_command
 ORDER BY position, expires_at, execution_id, command_id

-- open_commands_of --
SELECT command_id, body, checksum, 0 AS is_corrupted, worker_id, expires_at, 0 AS position
  FROM noetl_lease
 WHERE execution_id = :execution_id
UNION ALL
SELECT command_id, body, checksum, is_corrupted, NULL, NULL, position
  FROM noetl_queue
 WHERE execution_id = :execution_id
 ORDER BY position, expires_at, command_id

-- waiting_commands --
-- Those that no worker has, oldest first.
SELECT body, checksum
  FROM noetl_queue
 WHERE is_corrupted = 0
 ORDER BY position
 LIMIT :limit
