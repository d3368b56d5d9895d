-- Statements about what is kept and what is forgotten, beside those of store/retention.sql.

-- ended --
SELECT execution_id, path, status, requested_at, ended_at
  FROM noetl.execution
 WHERE parent_execution_id IS NULL AND ended_at IS NOT NULL
   AND ended_at < :before AND (ended_at, execution_id) > (:ended_after, :after_id)
   AND starts_with(path, :prefix)
 ORDER BY ended_at, execution_id
 LIMIT :limit

-- forgettable --
-- Locked in this order by everybody, so that two servers that forget the same do not wait for each
-- other in a circle.
SELECT execution_id FROM noetl.execution
 WHERE execution_id = ANY(:execution_ids) AND ended_at IS NOT NULL
   AND NOT EXISTS (SELECT FROM noetl.hold WHERE hold.execution_id = execution.execution_id)
 ORDER BY execution_id
   FOR UPDATE

-- tally --
INSERT INTO noetl.tally (day, path, status, executions)
SELECT floor(requested_at / 86400)::integer, path, status, count(*)
  FROM noetl.execution
 WHERE execution_id = ANY(:execution_ids)
 GROUP BY 1, 2, 3
 ORDER BY 1, 2, 3
    ON CONFLICT (day, path, status)
    DO UPDATE SET executions = tally.executions + excluded.executions

-- forget_executions --
-- With all that is small. Nothing refers to what is left but these rows.
WITH snapshots AS (
    DELETE FROM noetl.snapshot WHERE execution_id = ANY(:execution_ids)
), commands AS (
    DELETE FROM noetl.queue WHERE execution_id = ANY(:execution_ids)
), timers AS (
    DELETE FROM noetl.timer WHERE execution_id = ANY(:execution_ids)
), variables AS (
    DELETE FROM noetl.transient WHERE execution_id = ANY(:execution_ids)
), labels AS (
    DELETE FROM noetl.label WHERE execution_id = ANY(:execution_ids)
)
DELETE FROM noetl.execution WHERE execution_id = ANY(:execution_ids)

-- add_partitions --
SELECT noetl.add_partitions(:day, :days) AS made

-- spans --
-- Days of which all executions may go: each has ended long enough ago, nobody holds it, and nothing
-- outside of the day stands on it, called it or was called by it.
SELECT span.name
  FROM noetl.partition AS span
 WHERE span.last <= noetl.first_id(:day)
   AND NOT EXISTS (
    SELECT FROM noetl.execution AS kept
     WHERE kept.execution_id >= span.first AND kept.execution_id < span.last
       AND (kept.ended_at IS NULL
            OR kept.ended_at >= :before
            OR EXISTS (SELECT FROM noetl.hold WHERE hold.execution_id = kept.execution_id)
            OR EXISTS (SELECT FROM noetl.reuse
                         JOIN noetl.execution AS other ON other.execution_id = reuse.execution_id
                        WHERE reuse.source = kept.execution_id
                          AND (other.execution_id < span.first OR other.execution_id >= span.last))
            OR EXISTS (SELECT FROM noetl.execution AS caller
                        WHERE caller.execution_id = kept.parent_execution_id
                          AND (caller.execution_id < span.first
                               OR caller.execution_id >= span.last))
            OR EXISTS (SELECT FROM noetl.execution AS called
                        WHERE called.parent_execution_id = kept.execution_id
                          AND (called.execution_id < span.first
                               OR called.execution_id >= span.last)))
   )
 ORDER BY span.first

-- span_executions --
SELECT execution_id, path, parent_execution_id IS NULL AS is_root, seq
  FROM noetl.execution
 WHERE execution_id >= (SELECT first FROM noetl.partition WHERE name = :name)
   AND execution_id < (SELECT last FROM noetl.partition WHERE name = :name)
   AND ended_at IS NOT NULL
   AND NOT EXISTS (SELECT FROM noetl.hold WHERE hold.execution_id = execution.execution_id)
 ORDER BY execution_id
 LIMIT :limit
   FOR UPDATE

-- drop_partition --
SELECT noetl.drop_partition(:name) AS dropped
