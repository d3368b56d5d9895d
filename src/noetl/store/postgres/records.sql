-- Statements about lists of executions and saved queries of them, beside those of store/records.sql.

-- paths_like --
/* known_paths */
SELECT path FROM known WHERE path IS NULL OR path LIKE :like ESCAPE '\'

-- executions_histogram --
-- In any order: to sort all rows first would take longer than to count them.
SELECT floor((requested_at - :begin) / :width)::integer AS bucket, status,
       count(*) AS count
  FROM noetl.execution
 WHERE requested_at >= :begin AND requested_at < :end /* conditions */
 GROUP BY 1, 2

-- where_path_like --
path LIKE :like ESCAPE '\'

-- where_id --
-- The end is looked for in the index alone.
execution_id LIKE :begin ESCAPE '\' OR execution_id = ANY(ARRAY(
    SELECT execution_id FROM noetl.execution WHERE execution_id LIKE :end ESCAPE '\'))

-- where_label --
strpos(labels, :pair) > 0

-- where_any_label --
strpos(labels, :name) > 0

-- latest_runs --
-- The newest of some playbooks: a few steps along an index for each.
SELECT run.path, run.execution_id, run.status, run.waits, run.requested_at, run.ended_at
  FROM (SELECT DISTINCT unnest(CAST(:paths AS text[])) AS path) AS playbook
 CROSS JOIN LATERAL (SELECT path, execution_id, status, waits, requested_at, ended_at
                       FROM noetl.execution
                      WHERE path = playbook.path
                      ORDER BY requested_at DESC, execution_id DESC
                      LIMIT :limit) AS run
 ORDER BY run.path, run.requested_at DESC, run.execution_id DESC
