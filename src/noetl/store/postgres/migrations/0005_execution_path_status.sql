-- Executions of one playbook in one status are found without walking all of that playbook.
CREATE INDEX execution_path_status ON noetl.execution (
    path, status, requested_at, execution_id
);
