-- Statements about lists of executions and saved queries of them, beside those of store/records.sql.

-- known_paths --
-- The different paths, each found by one step along the index. After the last of all comes a null;
-- where there are more than so many, none does.
WITH RECURSIVE known (path, number) AS (
    SELECT * FROM (SELECT path, 1 FROM noetl_execution ORDER BY path LIMIT 1)
    UNION ALL
    SELECT (SELECT execution.path FROM noetl_execution AS execution
             WHERE execution.path > known.path ORDER BY execution.path LIMIT 1),
           number + 1
      FROM known
     WHERE path IS NOT NULL AND number <= :max
)

-- paths_like --
/* known_paths */
SELECT path FROM known WHERE path IS NULL OR path GLOB :glob

-- paths_with_text --
/* known_paths */
SELECT path FROM known WHERE path IS NULL OR path LIKE :within ESCAPE '\'

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

-- where_error --
error IS NOT NULL AND error LIKE :within ESCAPE '\'

-- where_label --
instr(labels, :pair) > 0

-- where_any_label --
instr(labels, :name) > 0

-- where_text --
path LIKE :within ESCAPE '\' OR error IS NOT NULL AND error LIKE :within ESCAPE '\'

-- where_text_among --
path = ANY(:paths)
    OR error IS NOT NULL AND error LIKE :within ESCAPE '\'
