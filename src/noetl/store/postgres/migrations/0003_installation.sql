-- What tells this database from others in places that several share, such as a NATS server.
CREATE TABLE noetl.installation (
    installation_id text COLLATE "C" NOT NULL PRIMARY KEY CHECK (installation_id <> '')
);

INSERT INTO noetl.installation VALUES (replace(gen_random_uuid()::text, '-', ''));
