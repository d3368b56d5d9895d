-- Executions that have an error, newest first: what is looked for in errors is looked for in these.
CREATE INDEX noetl_execution_errors ON noetl_execution (requested_at, execution_id)
 WHERE error IS NOT NULL;
