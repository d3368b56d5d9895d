-- What became of each message of a consumer. While a source may hand out a message again, its row
-- stands for it: a message that is known starts nothing. Outlives the execution.
CREATE TABLE noetl.trigger_message (
    path         text COLLATE "C"  NOT NULL,
    id           text COLLATE "C"  NOT NULL,
    at           double precision  NOT NULL,
    outcome      text COLLATE "C"  NOT NULL CHECK (outcome IN ('started', 'refused', 'ignored')),
    reason       text              NOT NULL,
    execution_id text COLLATE "C",
    PRIMARY KEY (path, id)
);

CREATE INDEX trigger_message_at ON noetl.trigger_message (path, at);

-- Rates that all workers share: the next moment of each that is free.
CREATE TABLE noetl.rate (
    key     text COLLATE "C"  PRIMARY KEY,
    next_at double precision  NOT NULL
) WITH (fillfactor = 70);
