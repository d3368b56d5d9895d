-- A pool serves executions in turn.
ALTER TABLE noetl_queue ADD COLUMN turn INTEGER NOT NULL DEFAULT 0;

DROP INDEX noetl_queue_next;
CREATE INDEX noetl_queue_next ON noetl_queue (pool, priority DESC, turn, position)
    WHERE is_corrupted = 0;
