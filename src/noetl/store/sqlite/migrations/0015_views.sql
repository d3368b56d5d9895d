-- Queries of executions that were saved under a name; columns are a JSON list.
CREATE TABLE noetl_view (
    name       TEXT NOT NULL PRIMARY KEY CHECK (name <> ''),
    q          TEXT NOT NULL,
    columns    TEXT NOT NULL,
    owner      TEXT NOT NULL,
    updated_at REAL NOT NULL
) STRICT, WITHOUT ROWID;
