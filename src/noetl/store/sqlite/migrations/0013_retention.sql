-- What is to be forgotten: executions that nobody called, in the order in which they ended.
CREATE INDEX noetl_execution_ended ON noetl_execution (ended_at, execution_id)
 WHERE parent_execution_id IS NULL AND ended_at IS NOT NULL;

-- Executions that stand on results of others: those must not be forgotten before them.
CREATE TABLE noetl_reuse (
    execution_id TEXT NOT NULL PRIMARY KEY,
    source       TEXT NOT NULL
) STRICT;

CREATE INDEX noetl_reuse_source ON noetl_reuse (source);

-- Executions that somebody wants to be kept.
CREATE TABLE noetl_hold (
    execution_id TEXT NOT NULL PRIMARY KEY REFERENCES noetl_execution ON DELETE CASCADE,
    note         TEXT NOT NULL,
    who          TEXT NOT NULL,
    at           REAL NOT NULL
) STRICT;

-- How many there were of those that are not kept any more.
CREATE TABLE noetl_tally (
    day        INTEGER NOT NULL,
    path       TEXT    NOT NULL,
    status     TEXT    NOT NULL,
    executions INTEGER NOT NULL CHECK (executions > 0),
    PRIMARY KEY (day, path, status)
) STRICT, WITHOUT ROWID;

-- Bodies in files are looked for by their checksum before the file is removed.
CREATE INDEX noetl_result_filed ON noetl_result (sha256) WHERE body IS NULL;
