-- A command is leased once: what is lost goes on under another command. So neither deliveries nor
-- tokens need a column.
CREATE TABLE noetl_queue_leased_once (
    position         INTEGER NOT NULL PRIMARY KEY,
    execution_id     TEXT    NOT NULL REFERENCES noetl_execution ON DELETE CASCADE,
    command_id       TEXT    NOT NULL CHECK (command_id <> ''),
    pool             TEXT    NOT NULL,
    priority         INTEGER NOT NULL,
    body             BLOB    NOT NULL,
    checksum         INTEGER NOT NULL,
    is_corrupted     INTEGER NOT NULL DEFAULT 0 CHECK (is_corrupted IN (0, 1)),
    worker_id        TEXT    CHECK (worker_id <> ''),
    lease_expires_at REAL,
    UNIQUE (execution_id, command_id),
    CHECK ((worker_id IS NULL) = (lease_expires_at IS NULL))
) STRICT;

INSERT INTO noetl_queue_leased_once (
    position, execution_id, command_id, pool, priority, body, checksum, is_corrupted,
    worker_id, lease_expires_at
)
SELECT position, execution_id, command_id, pool, priority, body, checksum, is_corrupted,
       worker_id, lease_expires_at
  FROM noetl_queue;

DROP TABLE noetl_queue;
ALTER TABLE noetl_queue_leased_once RENAME TO noetl_queue;

CREATE INDEX noetl_queue_free ON noetl_queue (pool, priority DESC, position)
    WHERE worker_id IS NULL AND is_corrupted = 0;
CREATE INDEX noetl_queue_leased ON noetl_queue (lease_expires_at) WHERE worker_id IS NOT NULL;

-- Processes that are there: servers and workers.
CREATE TABLE noetl_runtime (
    name       TEXT    NOT NULL PRIMARY KEY CHECK (name <> ''),
    kind       TEXT    NOT NULL CHECK (kind IN ('server', 'worker')),
    started_at REAL    NOT NULL,
    seen_at    REAL    NOT NULL,
    pool       TEXT    NOT NULL,
    slots      INTEGER NOT NULL CHECK (slots >= 0),
    host       TEXT    NOT NULL,
    version    TEXT    NOT NULL,
    draining   INTEGER NOT NULL CHECK (draining IN (0, 1))
) STRICT;
