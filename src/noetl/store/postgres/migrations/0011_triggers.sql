-- What is to be done for documents that start executions (schedules and their kin), and when.
-- `key` tells several things of one document apart; `revision` counts changes: whoever decides
-- something names the one it was decided on. A document that is gone has no `next_at`.
CREATE TABLE noetl.trigger (
    path     text COLLATE "C"  NOT NULL CHECK (path <> ''),
    key      text COLLATE "C"  NOT NULL,
    kind     text COLLATE "C"  NOT NULL,
    revision bigint            NOT NULL CHECK (revision >= 1),
    next_at  double precision,
    state    bytea             NOT NULL,
    PRIMARY KEY (path, key)
) WITH (fillfactor = 70);

CREATE INDEX trigger_next ON noetl.trigger (next_at) WHERE next_at IS NOT NULL;

-- What became of each time of a schedule. Outlives the execution.
CREATE TABLE noetl.trigger_time (
    path         text COLLATE "C"  NOT NULL,
    time         double precision  NOT NULL,
    outcome      text COLLATE "C"  NOT NULL CHECK (
        outcome IN ('started', 'skipped', 'missed', 'buffered')
    ),
    origin       text COLLATE "C"  NOT NULL,
    reason       text              NOT NULL,
    execution_id text COLLATE "C",
    decided_at   double precision  NOT NULL,
    PRIMARY KEY (path, time)
);

CREATE INDEX trigger_time_buffered ON noetl.trigger_time (path, time)
    WHERE outcome = 'buffered';
