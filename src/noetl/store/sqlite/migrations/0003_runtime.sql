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
