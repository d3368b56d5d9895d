-- Statements about lists of executions and saved queries of them, beside those of store/records.sql.

-- paths_like --
/* known_paths */
SELECT path FROM known WHERE path IS NULL OR path GLOB :glob

-- executions_histogram --
-- In any order: to sort all rows first would take longer than to count them.
SELECT CAST((requested_at - :begin) / :width AS INTEGER) AS bucket, status,
       count(*) AS count
  FROM noetl_execution
 WHERE requested_at >= :begin AND requested_at < :end /* conditions */
 GROUP BY 1, 2

-- where_path_like --
path GLOB :glob

-- where_id --
execution_id LIKE :begin ESCAPE '\' OR execution_id LIKE :end ESCAPE '\'

-- where_label --
instr(labels, :pair) > 0

-- where_any_label --
instr(labels, :name) > 0

-- latest_runs --
-- The newest of some playbooks: a few steps along an index for each.
SELECT run.path, run.execution_id, run.status, run.waits, run.requested_at, run.ended_at
  FROM (SELECT DISTINCT value AS path FROM json_each(:paths)) AS playbook
  JOIN noetl_execution AS run
    ON run.execution_id IN (SELECT newest.execution_id
                              FROM noetl_execution AS newest
                             WHERE newest.path = playbook.path
                             ORDER BY newest.requested_at DESC, newest.execution_id DESC
                             LIMIT :limit)
 ORDER BY run.path, run.requested_at DESC, run.execution_id DESC
