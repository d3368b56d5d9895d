-- Statements about lists of executions and saved queries of them.

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
-- Newest first. The conditions of a query stand at the mark; so in the next three.
SELECT /* summary_columns */
  FROM noetl.execution
 WHERE (requested_at, execution_id) < (:before_at, :before_id) /* conditions */
 ORDER BY requested_at DESC, execution_id DESC
 LIMIT :limit

-- known_paths --
-- The different paths, each found by one step along the index. After the last of all comes a null;
-- where there are more than so many, none does.
WITH RECURSIVE known (path, number) AS (
    (SELECT path, 1 FROM noetl.execution ORDER BY path LIMIT 1)
    UNION ALL
    SELECT (SELECT execution.path FROM noetl.execution
             WHERE execution.path > known.path ORDER BY execution.path LIMIT 1),
           number + 1
      FROM known
     WHERE path IS NOT NULL AND number <= :max
)

-- paths_like --
/* known_paths */
SELECT path FROM known WHERE path IS NULL OR path LIKE :like ESCAPE '\'

-- paths_with_text --
/* known_paths */
SELECT path FROM known WHERE path IS NULL OR path ILIKE :within ESCAPE '\'

-- labelled --
-- How many executions have a label, as far as it matters.
SELECT count(*) AS count
  FROM (SELECT FROM noetl.label WHERE name = :key AND value = :value LIMIT :max) AS found

-- labelled_at_all --
SELECT count(*) AS count
  FROM (SELECT FROM noetl.label WHERE name = :key LIMIT :max) AS found

-- label_counts --
-- How many executions have each value of a label.
SELECT value, count(*) AS executions
  FROM noetl.label
 WHERE name = :label AND requested_at >= :since
 GROUP BY value
 ORDER BY executions DESC, value
 LIMIT :limit

-- executions_count --
SELECT count(*) AS count FROM noetl.execution WHERE true /* conditions */

-- executions_span --
SELECT min(requested_at) AS first, max(requested_at) AS last FROM noetl.execution

-- executions_histogram --
-- In any order: to sort all rows first would take longer than to count them.
SELECT floor((requested_at - :begin) / :width)::integer AS bucket, status,
       count(*) AS count
  FROM noetl.execution
 WHERE requested_at >= :begin AND requested_at < :end /* conditions */
 GROUP BY 1, 2

-- where_status --
status = :value

-- where_completed --
status = 'COMPLETED'

-- where_failed --
status = 'FAILED'

-- where_cancelled --
status = 'CANCELLED'

-- where_waiting --
status = 'RUNNING' AND waits <> ''

-- where_waits --
status = 'RUNNING' AND waits = :value

-- where_waits_unknown --
status = 'RUNNING' AND waits IS NULL

-- where_path --
path = :value

-- where_path_like --
path LIKE :like ESCAPE '\'

-- where_path_like_among --
path = ANY(:paths)

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
-- The end is looked for in the index alone.
execution_id LIKE :begin ESCAPE '\' OR execution_id = ANY(ARRAY(
    SELECT execution_id FROM noetl.execution WHERE execution_id LIKE :end ESCAPE '\'))

-- where_exact_id --
execution_id = :value

-- where_step --
-- Who failed in a step has an error, who stands in one has not ended.
error IS NOT NULL AND failed_step = :value
    OR status IN ('PENDING', 'RUNNING', 'PAUSED') AND current_steps LIKE :within ESCAPE '\'

-- where_error --
error IS NOT NULL AND error ILIKE :within ESCAPE '\'

-- where_any_error --
error IS NOT NULL

-- where_label --
strpos(labels, :pair) > 0

-- where_label_few --
execution_id IN (SELECT execution_id FROM noetl.label WHERE name = :key AND value = :value)

-- where_any_label --
strpos(labels, :name) > 0

-- where_any_label_few --
execution_id IN (SELECT execution_id FROM noetl.label WHERE name = :key)

-- where_text --
path ILIKE :within ESCAPE '\' OR error IS NOT NULL AND error ILIKE :within ESCAPE '\'

-- where_text_among --
path = ANY(:paths) OR error IS NOT NULL AND error ILIKE :within ESCAPE '\'

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
