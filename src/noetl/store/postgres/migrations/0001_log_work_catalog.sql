-- Everything that belongs to an execution is keyed by it first, so that these tables can be
-- partitioned or distributed by execution_id. There are no foreign keys: every row of an execution
-- is written by the statement that has just locked its row here, and checking each again would
-- cost a quarter of the throughput.

-- An execution: where its log ends, and the row that lists show.
CREATE TABLE noetl.execution (
    execution_id        text COLLATE "C"  NOT NULL PRIMARY KEY CHECK (execution_id <> ''),
    seq                 bigint            NOT NULL CHECK (seq >= 0),
    checksum            bigint            NOT NULL,
    path                text COLLATE "C"  NOT NULL,
    version             integer           CHECK (version >= 1),
    digest              text COLLATE "C"  NOT NULL,
    status              text COLLATE "C"  NOT NULL CHECK (
        status IN ('PENDING', 'RUNNING', 'PAUSED', 'COMPLETED', 'FAILED', 'CANCELLED')
    ),
    requested_at        double precision  NOT NULL,
    ended_at            double precision,
    parent_execution_id text COLLATE "C",
    idempotency_key     text COLLATE "C"  UNIQUE,
    current_steps       text              NOT NULL DEFAULT '[]',
    error               text,
    CHECK ((ended_at IS NOT NULL) = (status IN ('COMPLETED', 'FAILED', 'CANCELLED')))
) WITH (fillfactor = 70);

-- Each of these is one way to list executions, newest first, without sorting.
CREATE INDEX execution_newest ON noetl.execution (requested_at, execution_id);
CREATE INDEX execution_status ON noetl.execution (status, requested_at, execution_id);
CREATE INDEX execution_path ON noetl.execution (path, requested_at, execution_id);
CREATE INDEX execution_parent ON noetl.execution (
    parent_execution_id, requested_at, execution_id
) WHERE parent_execution_id IS NOT NULL;

-- The log: the events of one write each, as a JSON array; `seq` is that of the last of them.
-- The checksum covers the row and the checksum of the row before it.
CREATE TABLE noetl.log (
    execution_id text COLLATE "C"  NOT NULL,
    seq          bigint            NOT NULL CHECK (seq >= 1),
    events       bytea             NOT NULL,
    checksum     bigint            NOT NULL,
    PRIMARY KEY (execution_id, seq)
);

-- The same, event by event, for people who look at it with SQL.
CREATE VIEW noetl.event AS
SELECT log.execution_id,
       log.seq - json_array_length(parsed.events) + event.number AS seq,
       event.body ->> 'type' AS type,
       (event.body ->> 'at')::double precision AS at,
       coalesce(event.body ->> 'step', '') AS step,
       coalesce(event.body ->> 'step_run_id', '') AS step_run_id,
       event.body
  FROM noetl.log AS log
 CROSS JOIN LATERAL (SELECT convert_from(log.events, 'UTF8')::json AS events) AS parsed
 CROSS JOIN LATERAL json_array_elements(parsed.events)
       WITH ORDINALITY AS event (body, number);

-- The newest snapshot of an execution, and the checksum of the last event folded into it.
CREATE TABLE noetl.snapshot (
    execution_id   text COLLATE "C" NOT NULL PRIMARY KEY,
    seq            bigint           NOT NULL CHECK (seq >= 1),
    event_checksum bigint           NOT NULL,
    body           bytea            NOT NULL,
    checksum       bigint           NOT NULL
);

-- Commands that are not closed. Rows come and go all the time, so they are tidied up often.
CREATE TABLE noetl.queue (
    execution_id     text COLLATE "C"  NOT NULL,
    command_id       text COLLATE "C"  NOT NULL CHECK (command_id <> ''),
    position         bigint            NOT NULL GENERATED ALWAYS AS IDENTITY,
    pool             text COLLATE "C"  NOT NULL,
    priority         integer           NOT NULL,
    body             bytea             NOT NULL,
    checksum         bigint            NOT NULL,
    is_corrupted     boolean           NOT NULL DEFAULT false,
    worker_id        text COLLATE "C"  CHECK (worker_id <> ''),
    lease_expires_at double precision,
    PRIMARY KEY (execution_id, command_id),
    CHECK ((worker_id IS NULL) = (lease_expires_at IS NULL))
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);

CREATE INDEX queue_free ON noetl.queue (pool, priority DESC, position)
    WHERE worker_id IS NULL AND NOT is_corrupted;
CREATE INDEX queue_leased ON noetl.queue (lease_expires_at) WHERE worker_id IS NOT NULL;

CREATE TABLE noetl.timer (
    execution_id text COLLATE "C"  NOT NULL,
    timer_id     text COLLATE "C"  NOT NULL CHECK (timer_id <> ''),
    fires_at     double precision  NOT NULL,
    PRIMARY KEY (execution_id, timer_id)
);

CREATE INDEX timer_next ON noetl.timer (fires_at, execution_id, timer_id);

-- Variables of an execution, as JSON. In names a NUL is written \0 and a backslash \\.
CREATE TABLE noetl.transient (
    execution_id text COLLATE "C" NOT NULL,
    name         text COLLATE "C" NOT NULL,
    value        bytea            NOT NULL,
    PRIMARY KEY (execution_id, name)
);

-- Bodies kept by reference.
CREATE TABLE noetl.result (
    execution_id text COLLATE "C" NOT NULL,
    key          text COLLATE "C" NOT NULL,
    sha256       text COLLATE "C" NOT NULL CHECK (length(sha256) = 64),
    size         bigint           NOT NULL CHECK (size >= 0),
    body         bytea            NOT NULL,
    PRIMARY KEY (execution_id, key),
    CHECK (length(body) = size)
);

-- Squeezing megabytes takes longer than writing them.
ALTER TABLE noetl.result ALTER COLUMN body SET STORAGE EXTERNAL;

-- Nets by digest: of catalog versions, and of files that were run directly.
CREATE TABLE noetl.net (
    digest text COLLATE "C" NOT NULL PRIMARY KEY CHECK (digest <> ''),
    body   bytea            NOT NULL
);

CREATE TABLE noetl.catalog (
    path        text COLLATE "C"  NOT NULL CHECK (path <> ''),
    version     integer           NOT NULL CHECK (version >= 1),
    catalog_id  text COLLATE "C"  NOT NULL UNIQUE,
    kind        text COLLATE "C"  NOT NULL,
    digest      text COLLATE "C"  NOT NULL REFERENCES noetl.net,
    content     text              NOT NULL,
    description text              NOT NULL,
    created_at  double precision  NOT NULL,
    PRIMARY KEY (path, version)
);

CREATE TABLE noetl.credential (
    name        text COLLATE "C"  NOT NULL PRIMARY KEY CHECK (name <> ''),
    type        text COLLATE "C"  NOT NULL,
    data        bytea             NOT NULL,
    description text              NOT NULL,
    tags        text              NOT NULL,
    created_at  double precision  NOT NULL,
    updated_at  double precision  NOT NULL
);

-- Processes that are there: servers and workers.
CREATE TABLE noetl.runtime (
    name       text COLLATE "C"  NOT NULL PRIMARY KEY CHECK (name <> ''),
    kind       text COLLATE "C"  NOT NULL CHECK (kind IN ('server', 'worker')),
    started_at double precision  NOT NULL,
    seen_at    double precision  NOT NULL,
    pool       text COLLATE "C"  NOT NULL,
    slots      integer           NOT NULL CHECK (slots >= 0),
    host       text              NOT NULL,
    version    text              NOT NULL,
    draining   boolean           NOT NULL
);
