-- An execution: where its log ends, and the row that lists show.
CREATE TABLE noetl_execution (
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
    idempotency_key     TEXT    UNIQUE,
    current_steps       TEXT    NOT NULL DEFAULT '[]',
    error               TEXT,
    CHECK ((ended_at IS NOT NULL) = (status IN ('COMPLETED', 'FAILED', 'CANCELLED')))
) STRICT;

-- Each of these is one way to list executions, newest first, without sorting.
CREATE INDEX noetl_execution_newest ON noetl_execution (requested_at, execution_id);
CREATE INDEX noetl_execution_status ON noetl_execution (status, requested_at, execution_id);
CREATE INDEX noetl_execution_path ON noetl_execution (path, requested_at, execution_id);
CREATE INDEX noetl_execution_parent ON noetl_execution (
    parent_execution_id, requested_at, execution_id
) WHERE parent_execution_id IS NOT NULL;

-- The log: the events of one write each, as a JSON array; `seq` is that of the last of them.
-- The checksum covers the row and the checksum of the row before it.
-- Rows in order of arrival: clustered by execution, a batch over 100 executions dirties 1.6 times
-- the pages (measured with bench/store.py).
CREATE TABLE noetl_log (
    execution_id TEXT    NOT NULL REFERENCES noetl_execution ON DELETE CASCADE,
    seq          INTEGER NOT NULL CHECK (seq >= 1),
    events       BLOB    NOT NULL,
    checksum     INTEGER NOT NULL,
    PRIMARY KEY (execution_id, seq)
) STRICT;

-- The same, event by event, for people who look at it with SQL.
CREATE VIEW noetl_event AS
SELECT log.execution_id,
       log.seq - json_array_length(CAST(log.events AS TEXT)) + 1 + event.key AS seq,
       json_extract(event.value, '$.type') AS type,
       json_extract(event.value, '$.at') AS at,
       coalesce(json_extract(event.value, '$.step'), '') AS step,
       coalesce(json_extract(event.value, '$.step_run_id'), '') AS step_run_id,
       event.value AS body
  FROM noetl_log AS log, json_each(CAST(log.events AS TEXT)) AS event;

-- The newest snapshot of an execution, and the checksum of the last event folded into it.
CREATE TABLE noetl_snapshot (
    execution_id   TEXT    NOT NULL PRIMARY KEY REFERENCES noetl_execution ON DELETE CASCADE,
    seq            INTEGER NOT NULL CHECK (seq >= 1),
    event_checksum INTEGER NOT NULL,
    body           BLOB    NOT NULL,
    checksum       INTEGER NOT NULL
) STRICT;

-- Commands that a worker holds. Most are held from birth to end, so they are a table of their own,
-- small and without a second index: to issue one and close the one before costs a commit one page.
-- A command is leased once: what is lost goes on under another command.
CREATE TABLE noetl_lease (
    execution_id TEXT    NOT NULL REFERENCES noetl_execution ON DELETE CASCADE,
    command_id   TEXT    NOT NULL CHECK (command_id <> ''),
    pool         TEXT    NOT NULL,
    body         BLOB    NOT NULL,
    checksum     INTEGER NOT NULL,
    worker_id    TEXT    NOT NULL CHECK (worker_id <> ''),
    expires_at   REAL    NOT NULL,
    PRIMARY KEY (execution_id, command_id)
) STRICT, WITHOUT ROWID;

-- Commands that nobody holds, in the order they were issued.
CREATE TABLE noetl_queue (
    position     INTEGER NOT NULL PRIMARY KEY,
    execution_id TEXT    NOT NULL REFERENCES noetl_execution ON DELETE CASCADE,
    command_id   TEXT    NOT NULL CHECK (command_id <> ''),
    pool         TEXT    NOT NULL,
    priority     INTEGER NOT NULL,
    body         BLOB    NOT NULL,
    checksum     INTEGER NOT NULL,
    is_corrupted INTEGER NOT NULL DEFAULT 0 CHECK (is_corrupted IN (0, 1)),
    UNIQUE (execution_id, command_id)
) STRICT;

CREATE INDEX noetl_queue_next ON noetl_queue (pool, priority DESC, position)
    WHERE is_corrupted = 0;

-- Everything that is open: first what is held, then what waits.
CREATE VIEW noetl_command AS
SELECT 0 AS position, execution_id, command_id, pool, body, checksum, worker_id, expires_at
  FROM noetl_lease
UNION ALL
SELECT position, execution_id, command_id, pool, body, checksum, NULL, NULL
  FROM noetl_queue
 WHERE is_corrupted = 0;

CREATE TABLE noetl_timer (
    execution_id TEXT NOT NULL REFERENCES noetl_execution ON DELETE CASCADE,
    timer_id     TEXT NOT NULL CHECK (timer_id <> ''),
    fires_at     REAL NOT NULL,
    PRIMARY KEY (execution_id, timer_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX noetl_timer_next ON noetl_timer (fires_at);

-- Variables of an execution, as JSON.
CREATE TABLE noetl_transient (
    execution_id TEXT NOT NULL REFERENCES noetl_execution ON DELETE CASCADE,
    name         TEXT NOT NULL,
    value        BLOB NOT NULL,
    PRIMARY KEY (execution_id, name)
) STRICT, WITHOUT ROWID;

-- Bodies kept by reference. One without `body` is in the file that is named by its checksum.
-- No foreign key: a body may be kept before the execution that will refer to it.
CREATE TABLE noetl_result (
    execution_id TEXT    NOT NULL,
    key          TEXT    NOT NULL,
    sha256       TEXT    NOT NULL CHECK (length(sha256) = 64),
    size         INTEGER NOT NULL CHECK (size >= 0),
    body         BLOB,
    PRIMARY KEY (execution_id, key),
    CHECK (body IS NULL OR length(body) = size)
) STRICT;

-- Nets by digest: of catalog versions, and of files that were run directly.
CREATE TABLE noetl_net (
    digest TEXT NOT NULL PRIMARY KEY CHECK (digest <> ''),
    body   BLOB NOT NULL
) STRICT;

CREATE TABLE noetl_catalog (
    path        TEXT    NOT NULL CHECK (path <> ''),
    version     INTEGER NOT NULL CHECK (version >= 1),
    catalog_id  TEXT    NOT NULL UNIQUE,
    kind        TEXT    NOT NULL,
    digest      TEXT    NOT NULL REFERENCES noetl_net,
    content     TEXT    NOT NULL,
    description TEXT    NOT NULL,
    created_at  REAL    NOT NULL,
    PRIMARY KEY (path, version)
) STRICT;

CREATE TABLE noetl_credential (
    name        TEXT NOT NULL PRIMARY KEY CHECK (name <> ''),
    type        TEXT NOT NULL,
    data        BLOB NOT NULL,
    description TEXT NOT NULL,
    tags        TEXT NOT NULL,
    created_at  REAL NOT NULL,
    updated_at  REAL NOT NULL
) STRICT;
