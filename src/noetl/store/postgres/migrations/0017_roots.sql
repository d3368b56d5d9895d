-- Executions that nobody called, newest first: few, where most were called by others.
CREATE INDEX execution_roots ON noetl.execution (requested_at, execution_id)
 WHERE parent_execution_id IS NULL;
