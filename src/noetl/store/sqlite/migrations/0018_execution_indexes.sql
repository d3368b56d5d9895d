-- A start and an end write to as few indexes as can be: each costs a page of every commit.
--
-- The table is made anew, because a UNIQUE of a column cannot be taken back: it was an index with a
-- row for each execution, and hardly any is started under a key.
CREATE TABLE noetl_execution_anew (
    execution_id        TEXT    NOT NULL PRIMARY KEY CHECK (execution_id <> ''),
    seq                 INTEGER NOT NULL CHECK (seq >= 0),
    checksum            INTEGER NOT NULL,
    path                TEXT    NOT NULL,
    version             INTEGER CHECK (version >= 1),
    digest              TEXT    NOT NULL,
    status              TEXT    NOT NULL CHECK (
        status IN ('PENDING', 'RUNNING', 'PAUSED', 'COMPLETED', 'FAILED', 'CANCELLED')
    ),
    requested_at        REAL    NOT NULL,
    ended_at            REAL,
    parent_execution_id TEXT,
    idempotency_key     TEXT,
    current_steps       TEXT    NOT NULL DEFAULT '[]',
    error               TEXT,
    labels              TEXT,
    failed_step         TEXT,
    waits               TEXT,
    CHECK ((ended_at IS NOT NULL) = (status IN ('COMPLETED', 'FAILED', 'CANCELLED')))
) STRICT;

INSERT INTO noetl_execution_anew
SELECT execution_id, seq, checksum, path, version, digest, status, requested_at, ended_at,
       parent_execution_id, idempotency_key, current_steps, error, labels, failed_step, waits
  FROM noetl_execution
 ORDER BY rowid;

DROP TABLE noetl_execution;
ALTER TABLE noetl_execution_anew RENAME TO noetl_execution;

CREATE UNIQUE INDEX noetl_execution_key ON noetl_execution (idempotency_key)
 WHERE idempotency_key IS NOT NULL;

-- Each of these is one way to list executions, newest first, without sorting.
CREATE INDEX noetl_execution_newest ON noetl_execution (requested_at, execution_id);
CREATE INDEX noetl_execution_path ON noetl_execution (path, requested_at, execution_id);
CREATE INDEX noetl_execution_status ON noetl_execution (status, requested_at, execution_id);
CREATE INDEX noetl_execution_parent ON noetl_execution (
    parent_execution_id, requested_at, execution_id
) WHERE parent_execution_id IS NOT NULL;
CREATE INDEX noetl_execution_errors ON noetl_execution (requested_at, execution_id)
 WHERE error IS NOT NULL;

-- Those that have not ended are few, and found by their status alone.
CREATE INDEX noetl_execution_path_status ON noetl_execution (
    path, status, requested_at, execution_id
) WHERE status = 'COMPLETED' OR status = 'FAILED' OR status = 'CANCELLED';
