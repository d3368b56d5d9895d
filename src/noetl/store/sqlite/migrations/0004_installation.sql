-- What tells this database from others in places that several share, such as a NATS server.
CREATE TABLE noetl_installation (
    installation_id TEXT NOT NULL PRIMARY KEY CHECK (installation_id <> '')
) STRICT;

INSERT INTO noetl_installation VALUES (lower(hex(randomblob(16))));
