-- Statements about lists of executions and saved queries of them.

-- summary_columns --
execution_id, path, version, digest, status, requested_at, ended_at,
       parent_execution_id, idempotency_key, current_steps, error, labels,
       failed_step, waits

-- summary --
SELECT /* summary_columns */
  FROM noetl.execution
 WHERE execution_id = %(execution_id)s

-- summary_by_key --
SELECT /* summary_columns */
  FROM noetl.execution
 WHERE idempotency_key = %(key)s

-- summaries --
-- Newest first. The conditions of a query stand at the mark; so in the next three.
SELECT /* summary_columns */
  FROM noetl.execution
 WHERE (requested_at, execution_id) < (%(before_at)s, %(before_id)s) /* conditions */
 ORDER BY requested_at DESC, execution_id DESC
 LIMIT %(limit)s

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
     WHERE path IS NOT NULL AND number <= %(max)s
)

-- paths_like --
/* known_paths */
SELECT path FROM known WHERE path IS NULL OR path LIKE %(glob)s ESCAPE '\'

-- paths_with_text --
/* known_paths */
SELECT path FROM known WHERE path IS NULL OR path ILIKE %(within)s ESCAPE '\'

-- labelled --
-- How many executions have a label, as far as it matters.
SELECT count(*) AS count
  FROM (SELECT FROM noetl.label WHERE name = %(key)s AND value = %(value)s LIMIT %(max)s) AS found

-- labelled_at_all --
SELECT count(*) AS count
  FROM (SELECT FROM noetl.label WHERE name = %(key)s LIMIT %(max)s) AS found

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
SELECT min(requested_at) AS first, max(requested_at) AS last FROM noetl.execution

-- executions_histogram --
-- In any order: to sort all rows first would take longer than to count them.
SELECT floor((requested_at - %(begin)s) / %(width)s)::integer AS bucket, status,
       count(*) AS count
  FROM noetl.execution
 WHERE requested_at >= %(begin)s AND requested_at < %(end)s /* conditions */
 GROUP BY 1, 2

-- where_status --
status = %(value)s

-- where_completed --
status = 'COMPLETED'

-- where_failed --
status = 'FAILED'

-- where_cancelled --
status = 'CANCELLED'

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

-- where_path_like_among --
path = ANY(%(paths)s)

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
-- The end is looked for in the index alone.
execution_id LIKE %(begin)s ESCAPE '\' OR execution_id = ANY(ARRAY(
    SELECT execution_id FROM noetl.execution WHERE execution_id LIKE %(end)s ESCAPE '\'))

-- where_exact_id --
execution_id = %(value)s

-- where_step --
-- Who failed in a step has an error, who stands in one has not ended.
error IS NOT NULL AND failed_step = %(value)s
    OR status IN ('PENDING', 'RUNNING', 'PAUSED') AND current_steps LIKE %(within)s ESCAPE '\'

-- where_error --
error IS NOT NULL AND error ILIKE %(within)s ESCAPE '\'

-- where_any_error --
error IS NOT NULL

-- where_label --
strpos(labels, %(pair)s) > 0

-- where_label_few --
execution_id IN (SELECT execution_id FROM noetl.label WHERE name = %(key)s AND value = %(value)s)

-- where_any_label --
strpos(labels, %(name)s) > 0

-- where_any_label_few --
execution_id IN (SELECT execution_id FROM noetl.label WHERE name = %(key)s)

-- where_text --
path ILIKE %(within)s ESCAPE '\' OR error IS NOT NULL AND error ILIKE %(within)s ESCAPE '\'

-- where_text_among --
path = ANY(%(paths)s) OR error IS NOT NULL AND error ILIKE %(within)s ESCAPE '\'

-- unfinished --
SELECT execution_id
  FROM noetl.execution
 WHERE status IN ('PENDING', 'RUNNING', 'PAUSED')
 ORDER BY requested_at, execution_id

-- ended_since --
-- No index has the called ones: this is asked when a server has died, and seldom.
SELECT ended_at, execution_id
  FROM noetl.execution
 WHERE ended_at < %(before)s AND (ended_at, execution_id) > (%(at)s, %(execution_id)s)
 ORDER BY ended_at, execution_id
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
