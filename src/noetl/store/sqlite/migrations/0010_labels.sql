-- Labels of executions: in the row that lists show as JSON, null where there are none, and one row
-- each to find executions by, newest first, and to count them.
ALTER TABLE noetl_execution ADD COLUMN labels TEXT;

CREATE TABLE noetl_label (
    execution_id TEXT NOT NULL REFERENCES noetl_execution ON DELETE CASCADE,
    name         TEXT NOT NULL,
    value        TEXT NOT NULL,
    requested_at REAL NOT NULL,
    PRIMARY KEY (execution_id, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX noetl_label_newest ON noetl_label (name, value, requested_at, execution_id);
