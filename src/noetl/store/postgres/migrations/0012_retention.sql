-- What is to be forgotten: executions that nobody called, in the order in which they ended.
CREATE INDEX execution_ended ON noetl.execution (ended_at, execution_id)
 WHERE parent_execution_id IS NULL AND ended_at IS NOT NULL;

-- Executions that stand on results of others: those must not be forgotten before them.
CREATE TABLE noetl.reuse (
    execution_id text COLLATE "C" NOT NULL PRIMARY KEY,
    source       text COLLATE "C" NOT NULL
);

CREATE INDEX reuse_source ON noetl.reuse (source);

-- Executions that somebody wants to be kept.
CREATE TABLE noetl.hold (
    execution_id text COLLATE "C"  NOT NULL PRIMARY KEY,
    note         text              NOT NULL,
    who          text              NOT NULL,
    at           double precision  NOT NULL
);

-- How many there were of those that are not kept any more.
CREATE TABLE noetl.tally (
    day        integer           NOT NULL,
    path       text COLLATE "C"  NOT NULL,
    status     text COLLATE "C"  NOT NULL,
    executions bigint            NOT NULL CHECK (executions > 0),
    PRIMARY KEY (day, path, status)
);
