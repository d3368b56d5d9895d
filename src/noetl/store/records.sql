-- Statements about lists of executions and saved queries of them, for every store.

-- summary_columns --
execution_id, path, version, digest, status, requested_at, ended_at,
       parent_execution_id, idempotency_key, current_steps, error, labels,
       failed_step, waits

-- summary --
SELECT /* summary_columns */
  FROM noetl.execution
 WHERE execution_id = :execution_id

-- summary_by_key --
SELECT /* summary_columns */
  FROM noetl.execution
 WHERE idempotency_key = :key

-- summaries --
-- Newest first. The conditions of a query stand at the mark; so in the counts.
SELECT /* summary_columns */
  FROM noetl.execution
 WHERE (requested_at, execution_id) < (:before_at, :before_id) /* conditions */
 ORDER BY requested_at DESC, execution_id DESC
 LIMIT :limit

-- labelled --
-- How many executions have a label, as far as it matters.
SELECT count(*) AS count
  FROM (SELECT 1 FROM noetl.label WHERE name = :key AND value = :value LIMIT :max) AS found

-- labelled_at_all --
SELECT count(*) AS count FROM (SELECT 1 FROM noetl.label WHERE name = :key LIMIT :max) AS found

-- label_counts --
-- How many executions have each value of a label.
SELECT value, count(*) AS executions
  FROM noetl.label
 WHERE name = :label AND requested_at >= :since
 GROUP BY value
 ORDER BY executions DESC, value
 LIMIT :limit

-- known_paths --
-- The different paths, each found by one step along the index. After the last of all comes a null;
-- where there are more than so many, none does.
WITH RECURSIVE known (path, number) AS (
    SELECT * FROM (SELECT path, 1 FROM noetl.execution ORDER BY path LIMIT 1) AS lowest
    UNION ALL
    SELECT (SELECT execution.path FROM noetl.execution AS execution
             WHERE execution.path > known.path ORDER BY execution.path LIMIT 1),
           number + 1
      FROM known
     WHERE path IS NOT NULL AND number <= :max
)

-- paths_with_text --
/* known_paths */
SELECT path FROM known WHERE path IS NULL OR path ILIKE :within ESCAPE '\'

-- executions_count --
SELECT count(*) AS count FROM noetl.execution WHERE true /* conditions */

-- executions_span --
-- Two steps along an index: both at once would be a walk over all rows.
SELECT (SELECT min(requested_at) FROM noetl.execution),
       (SELECT max(requested_at) FROM noetl.execution)

-- where_status --
status = :value

-- where_completed --
-- As it stands in the condition of an index; so the next two.
status = 'COMPLETED'

-- where_failed --
status = 'FAILED'

-- where_cancelled --
status = 'CANCELLED'

-- where_waiting --
status = 'RUNNING' AND waits IN ('form', 'event')

-- where_waits --
status = 'RUNNING' AND waits = :value

-- where_waits_unknown --
status = 'RUNNING' AND waits IS NULL

-- where_path --
path = :value

-- where_path_like_among --
path = ANY(:paths)

-- where_error --
error IS NOT NULL AND error ILIKE :within ESCAPE '\'

-- where_text --
path ILIKE :within ESCAPE '\' OR error IS NOT NULL AND error ILIKE :within ESCAPE '\'

-- where_text_among --
path = ANY(:paths) OR error IS NOT NULL AND error ILIKE :within ESCAPE '\'

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

-- where_exact_id --
execution_id = :value

-- where_step --
-- Who failed in a step has an error, who stands in one has not ended.
error IS NOT NULL AND failed_step = :value
    OR status IN ('PENDING', 'RUNNING', 'PAUSED') AND current_steps LIKE :within ESCAPE '\'

-- where_any_error --
error IS NOT NULL

-- where_label_few --
execution_id IN (SELECT execution_id FROM noetl.label WHERE name = :key AND value = :value)

-- where_any_label_few --
execution_id IN (SELECT execution_id FROM noetl.label WHERE name = :key)

-- unfinished --
SELECT execution_id
  FROM noetl.execution
 WHERE status IN ('PENDING', 'RUNNING', 'PAUSED')
 ORDER BY requested_at, execution_id

-- ended_since --
-- No index has the called ones: this is asked when a server has died, and seldom.
SELECT ended_at, execution_id
  FROM noetl.execution
 WHERE ended_at < :before AND (ended_at, execution_id) > (:at, :execution_id)
 ORDER BY ended_at, execution_id
 LIMIT :limit

-- views --
SELECT name, q, columns, owner, updated_at FROM noetl.view ORDER BY name

-- put_view --
INSERT INTO noetl.view (name, q, columns, owner, updated_at)
VALUES (:name, :q, :columns, :owner, :updated_at)
    ON CONFLICT (name) DO UPDATE SET q = excluded.q, columns = excluded.columns,
       owner = excluded.owner, updated_at = excluded.updated_at

-- delete_view --
DELETE FROM noetl.view WHERE name = :name
