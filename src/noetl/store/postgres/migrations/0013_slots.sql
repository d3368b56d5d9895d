-- Limits that executions are held to. A row stands for an execution that has not ended and the limit
-- of that name: it holds a slot, or waits for one. It holds one only while the execution runs, so a
-- slot cannot be lost: the transaction that ends an execution frees it.
CREATE TABLE noetl.slot (
    execution_id text COLLATE "C"  NOT NULL,
    name         text COLLATE "C"  NOT NULL,
    capacity     integer           NOT NULL CHECK (capacity >= 1),
    held         boolean           NOT NULL,
    replaces     boolean           NOT NULL,
    priority     integer           NOT NULL,
    requested_at double precision  NOT NULL,
    PRIMARY KEY (execution_id, name)
);

CREATE INDEX slot_order ON noetl.slot (name, held, priority DESC, requested_at, execution_id);
CREATE INDEX slot_waiting ON noetl.slot (name) WHERE NOT held;
