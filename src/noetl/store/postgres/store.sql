-- Statements about the database itself, beside those of store/store.sql.

-- time --
SELECT extract(epoch FROM clock_timestamp())::double precision AS now

-- check_commands --
SELECT execution_id, command_id, pool, priority, turn, is_corrupted, body, checksum
  FROM noetl.queue
 ORDER BY position

-- check_strays --
-- There are no foreign keys, so look for rows of executions that do not exist.
SELECT DISTINCT execution_id FROM noetl.log
 WHERE NOT EXISTS (
    SELECT FROM noetl.execution WHERE execution.execution_id = log.execution_id
 )
 ORDER BY execution_id
