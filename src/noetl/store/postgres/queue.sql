-- Statements about commands and leases.

-- claim --
-- Lease free commands: those of the highest priority, and of these the ones whose turn it is. What
-- another server is claiming at this moment is passed over.
WITH chosen AS (
    SELECT execution_id, command_id
      FROM noetl.queue AS command
     WHERE /* is_free */
     /* in_turn */
     LIMIT :limit
       FOR UPDATE SKIP LOCKED
)
/* lease_chosen */

-- claim_own --
-- The same, of those that this process opened; none of them while one of a higher priority waits.
WITH chosen AS (
    SELECT execution_id, command_id
      FROM noetl.queue AS command
     WHERE home = :home
       AND priority >= (SELECT priority
                          FROM noetl.queue AS command
                         WHERE /* is_free */
                         /* in_turn */
                         LIMIT 1)
       AND /* is_free */
     /* in_turn */
     LIMIT :limit
       FOR UPDATE SKIP LOCKED
)
/* lease_chosen */

-- claim_of --
-- The same, of a few commands.
WITH chosen AS (
    SELECT execution_id, command_id
      FROM noetl.queue AS command
     WHERE command_id = ANY(:commands)
       AND /* is_free */
     /* in_turn */
     LIMIT :limit
       FOR UPDATE SKIP LOCKED
)
/* lease_chosen */

-- free --
SELECT execution_id, command_id, turn
  FROM noetl.queue AS command
 WHERE /* is_free */
 /* in_turn */
 LIMIT :limit

-- is_free --
-- What a worker of a pool may be given. Commands of paused executions wait until these are resumed.
pool = :pool AND worker_id IS NULL AND NOT is_corrupted
       AND NOT EXISTS (SELECT FROM noetl.execution AS paused
                        WHERE paused.execution_id = command.execution_id
                          AND paused.status = 'PAUSED')

-- in_turn --
ORDER BY priority DESC, turn, position

-- lease_chosen --
UPDATE noetl.queue AS stored
   SET worker_id = :worker_id, lease_expires_at = :expires_at
  FROM chosen
 WHERE stored.execution_id = chosen.execution_id AND stored.command_id = chosen.command_id
RETURNING stored.execution_id, stored.command_id, stored.priority, stored.turn, stored.position,
          stored.body, stored.checksum

-- set_aside --
-- A command that is not what was written is nobody's work, and in nobody's way.
UPDATE noetl.queue
   SET worker_id = NULL, lease_expires_at = NULL, is_corrupted = true
 WHERE execution_id = :execution_id AND command_id = :command_id

-- renew_leases --
-- Walks the leases that hold: they are few, and another index would cost every delivery.
UPDATE noetl.queue
   SET lease_expires_at = :expires_at
 WHERE worker_id IS NOT NULL AND lease_expires_at > :now
   AND command_id = ANY(:commands)
RETURNING command_id

-- holders --
SELECT command_id, execution_id, worker_id
  FROM noetl.queue
 WHERE worker_id IS NOT NULL AND command_id = ANY(:commands)

-- lapsed --
SELECT body, checksum, worker_id, lease_expires_at
  FROM noetl.queue
 WHERE worker_id IS NOT NULL AND lease_expires_at <= :now AND NOT is_corrupted
 ORDER BY lease_expires_at, position
 LIMIT :limit

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
SELECT command_id, body, checksum, is_corrupted, worker_id, lease_expires_at
  FROM noetl.queue
 ORDER BY position

-- open_commands_of --
SELECT command_id, body, checksum, is_corrupted, worker_id, lease_expires_at
  FROM noetl.queue
 WHERE execution_id = :execution_id
 ORDER BY position

-- waiting_commands --
-- Those that no worker has, oldest first.
SELECT body, checksum
  FROM noetl.queue
 WHERE worker_id IS NULL AND NOT is_corrupted
 ORDER BY position
 LIMIT :limit
