-- People who sign in. Roles are a JSON list of names.
CREATE TABLE noetl."user" (
    name          text COLLATE "C" NOT NULL PRIMARY KEY CHECK (name <> ''),
    password_hash text COLLATE "C" NOT NULL CHECK (password_hash <> ''),
    roles         text COLLATE "C" NOT NULL,
    email         text COLLATE "C" NOT NULL,
    display_name  text COLLATE "C" NOT NULL,
    created_at    double precision NOT NULL
);

-- What programs show. Only a digest is kept: nobody can read a token back.
CREATE TABLE noetl.token (
    name       text COLLATE "C" NOT NULL PRIMARY KEY CHECK (name <> ''),
    digest     text COLLATE "C" NOT NULL UNIQUE CHECK (length(digest) = 64),
    roles      text COLLATE "C" NOT NULL,
    created_at double precision NOT NULL,
    expires_at double precision
);

CREATE TABLE noetl.session (
    session_id       text COLLATE "C" NOT NULL PRIMARY KEY CHECK (session_id <> ''),
    digest           text COLLATE "C" NOT NULL UNIQUE CHECK (length(digest) = 64),
    "user"           text COLLATE "C" NOT NULL,
    created_at       double precision NOT NULL,
    expires_at       double precision NOT NULL,
    last_activity_at double precision NOT NULL,
    client_ip        text COLLATE "C" NOT NULL
);

CREATE INDEX session_of_user ON noetl.session ("user", created_at);
CREATE INDEX session_expiry ON noetl.session (expires_at);

-- Who looked at what. Rows are only ever added.
CREATE TABLE noetl.audit (
    position     bigint           NOT NULL PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    at           double precision NOT NULL,
    who          text COLLATE "C" NOT NULL,
    action       text COLLATE "C" NOT NULL CHECK (action <> ''),
    target       text COLLATE "C" NOT NULL,
    execution_id text COLLATE "C",
    details      text COLLATE "C" NOT NULL
);

-- Secrets that were handed out, sealed again, each for a time.
CREATE TABLE noetl.auth_cache (
    cache_key           text COLLATE "C" NOT NULL PRIMARY KEY,
    credential_name     text COLLATE "C" NOT NULL,
    credential_type     text COLLATE "C" NOT NULL,
    cache_type          text COLLATE "C" NOT NULL CHECK (cache_type IN ('secret', 'token')),
    scope_type          text COLLATE "C" NOT NULL CHECK (scope_type IN ('execution', 'global')),
    execution_id        text COLLATE "C",
    parent_execution_id text COLLATE "C",
    data_encrypted      bytea            NOT NULL,
    expires_at          double precision NOT NULL,
    created_at          double precision NOT NULL,
    accessed_at         double precision NOT NULL,
    access_count        bigint           NOT NULL CHECK (access_count >= 0),
    CHECK ((scope_type = 'execution') = (execution_id IS NOT NULL))
);

CREATE INDEX auth_cache_expiry ON noetl.auth_cache (expires_at);
