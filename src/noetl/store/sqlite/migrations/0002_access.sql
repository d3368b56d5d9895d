-- People who sign in. Roles are a JSON list of names.
CREATE TABLE noetl_user (
    name          TEXT NOT NULL PRIMARY KEY CHECK (name <> ''),
    password_hash TEXT NOT NULL CHECK (password_hash <> ''),
    roles         TEXT NOT NULL,
    email         TEXT NOT NULL,
    display_name  TEXT NOT NULL,
    created_at    REAL NOT NULL
) STRICT;

-- What programs show. Only a digest is kept: nobody can read a token back.
CREATE TABLE noetl_token (
    name       TEXT NOT NULL PRIMARY KEY CHECK (name <> ''),
    digest     TEXT NOT NULL UNIQUE CHECK (length(digest) = 64),
    roles      TEXT NOT NULL,
    created_at REAL NOT NULL,
    expires_at REAL
) STRICT;

CREATE TABLE noetl_session (
    session_id       TEXT NOT NULL PRIMARY KEY CHECK (session_id <> ''),
    digest           TEXT NOT NULL UNIQUE CHECK (length(digest) = 64),
    user             TEXT NOT NULL,
    created_at       REAL NOT NULL,
    expires_at       REAL NOT NULL,
    last_activity_at REAL NOT NULL,
    client_ip        TEXT NOT NULL
) STRICT;

CREATE INDEX noetl_session_user ON noetl_session (user, created_at);
CREATE INDEX noetl_session_expiry ON noetl_session (expires_at);

-- Who looked at what. Rows are only ever added.
CREATE TABLE noetl_audit (
    position     INTEGER NOT NULL PRIMARY KEY,
    at           REAL    NOT NULL,
    who          TEXT    NOT NULL,
    action       TEXT    NOT NULL CHECK (action <> ''),
    target       TEXT    NOT NULL,
    execution_id TEXT,
    details      TEXT    NOT NULL
) STRICT;

-- Secrets that were handed out, sealed again, each for a time.
CREATE TABLE noetl_auth_cache (
    cache_key           TEXT    NOT NULL PRIMARY KEY,
    credential_name     TEXT    NOT NULL,
    credential_type     TEXT    NOT NULL,
    cache_type          TEXT    NOT NULL CHECK (cache_type IN ('secret', 'token')),
    scope_type          TEXT    NOT NULL CHECK (scope_type IN ('execution', 'global')),
    execution_id        TEXT,
    parent_execution_id TEXT,
    data_encrypted      BLOB    NOT NULL,
    expires_at          REAL    NOT NULL,
    created_at          REAL    NOT NULL,
    accessed_at         REAL    NOT NULL,
    access_count        INTEGER NOT NULL CHECK (access_count >= 0),
    CHECK ((scope_type = 'execution') = (execution_id IS NOT NULL))
) STRICT;

CREATE INDEX noetl_auth_cache_expiry ON noetl_auth_cache (expires_at);
