-- Limits that executions are held to. A row stands for an execution that has not ended and the limit
-- of that name: it holds a slot, or waits for one. It holds one only while the execution runs, so a
-- slot cannot be lost: the transaction that ends an execution frees it.
CREATE TABLE noetl_slot (
    execution_id TEXT    NOT NULL REFERENCES noetl_execution ON DELETE CASCADE,
    name         TEXT    NOT NULL,
    capacity     INTEGER NOT NULL CHECK (capacity >= 1),
    held         INTEGER NOT NULL CHECK (held IN (0, 1)),
    replaces     INTEGER NOT NULL CHECK (replaces IN (0, 1)),
    priority     INTEGER NOT NULL,
    requested_at REAL    NOT NULL,
    PRIMARY KEY (execution_id, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX noetl_slot_order ON noetl_slot (name, held, priority DESC, requested_at, execution_id);
