-- Queries of executions that were saved under a name; columns are a JSON list.
CREATE TABLE noetl.view (
    name       text COLLATE "C"  NOT NULL PRIMARY KEY CHECK (name <> ''),
    q          text              NOT NULL,
    columns    text              NOT NULL,
    owner      text              NOT NULL,
    updated_at double precision  NOT NULL
);
