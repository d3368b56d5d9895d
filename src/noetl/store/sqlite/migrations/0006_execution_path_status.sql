-- Executions of one playbook in one status are found without walking all of that playbook.
CREATE INDEX noetl_execution_path_status ON noetl_execution (
    path, status, requested_at, execution_id
);
