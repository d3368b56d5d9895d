-- What became of each message of a consumer. While a source may hand out a message again, its row
-- stands for it: a message that is known starts nothing. Outlives the execution.
CREATE TABLE noetl_trigger_message (
    path         TEXT NOT NULL,
    id           TEXT NOT NULL,
    at           REAL NOT NULL,
    outcome      TEXT NOT NULL CHECK (outcome IN ('started', 'refused', 'ignored')),
    reason       TEXT NOT NULL,
    execution_id TEXT,
    PRIMARY KEY (path, id)
) STRICT, WITHOUT ROWID;

CREATE INDEX noetl_trigger_message_at ON noetl_trigger_message (path, at);

-- Rates that all workers share: the next moment of each that is free.
CREATE TABLE noetl_rate (
    key     TEXT PRIMARY KEY,
    next_at REAL NOT NULL
) STRICT, WITHOUT ROWID;
