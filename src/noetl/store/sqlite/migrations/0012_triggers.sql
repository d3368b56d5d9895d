-- What is to be done for documents that start executions (schedules and their kin), and when.
-- `key` tells several things of one document apart; `revision` counts changes: whoever decides
-- something names the one it was decided on. A document that is gone has no `next_at`.
CREATE TABLE noetl_trigger (
    path     TEXT    NOT NULL CHECK (path <> ''),
    key      TEXT    NOT NULL,
    kind     TEXT    NOT NULL,
    revision INTEGER NOT NULL CHECK (revision >= 1),
    next_at  REAL,
    state    BLOB    NOT NULL,
    PRIMARY KEY (path, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX noetl_trigger_next ON noetl_trigger (next_at) WHERE next_at IS NOT NULL;

-- What became of each time of a schedule. Outlives the execution.
CREATE TABLE noetl_trigger_time (
    path         TEXT NOT NULL,
    time         REAL NOT NULL,
    outcome      TEXT NOT NULL CHECK (outcome IN ('started', 'skipped', 'missed', 'buffered')),
    origin       TEXT NOT NULL,
    reason       TEXT NOT NULL,
    execution_id TEXT,
    decided_at   REAL NOT NULL,
    PRIMARY KEY (path, time)
) STRICT, WITHOUT ROWID;

CREATE INDEX noetl_trigger_time_buffered ON noetl_trigger_time (path, time)
    WHERE outcome = 'buffered';
