-- A pool serves executions in turn (`turn`), and a server's workers take first what that server has
-- opened (`home`).
ALTER TABLE noetl.queue
    ADD COLUMN turn bigint NOT NULL DEFAULT 0,
    ADD COLUMN home text COLLATE "C" NOT NULL DEFAULT '';

DROP INDEX noetl.queue_free;
CREATE INDEX queue_free ON noetl.queue (pool, priority DESC, turn, position)
    WHERE worker_id IS NULL AND NOT is_corrupted;
CREATE INDEX queue_home ON noetl.queue (pool, home, priority DESC, turn, position)
    WHERE worker_id IS NULL AND NOT is_corrupted;
