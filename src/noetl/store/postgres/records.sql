-- Statements about lists of executions and saved queries of them, beside those of store/records.sql.

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

-- where_error --
error IS NOT NULL AND error ILIKE :within ESCAPE '\'

-- where_label --
strpos(labels, :pair) > 0

-- where_any_label --
strpos(labels, :name) > 0

-- where_text --
path ILIKE :within ESCAPE '\' OR error IS NOT NULL AND error ILIKE :within ESCAPE '\'

-- where_text_among --
path = ANY(:paths) OR error IS NOT NULL AND error ILIKE :within ESCAPE '\'
