-- Labels of executions: in the row that lists show as JSON, null where there are none, and one row
-- each to find executions by, newest first, and to count them.
ALTER TABLE noetl.execution ADD COLUMN labels text;

CREATE TABLE noetl.label (
    execution_id text COLLATE "C"  NOT NULL,
    name         text COLLATE "C"  NOT NULL,
    value        text COLLATE "C"  NOT NULL,
    requested_at double precision  NOT NULL,
    PRIMARY KEY (execution_id, name)
);

CREATE INDEX label_newest ON noetl.label (name, value, requested_at, execution_id);
