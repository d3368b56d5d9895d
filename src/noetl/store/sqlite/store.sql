-- Statements about the database itself: who uses it, and whether it is whole.

-- installation --
SELECT installation_id FROM noetl_installation

-- probe --
UPDATE noetl_installation SET installation_id = installation_id

-- beat --
INSERT INTO noetl_runtime (
    name, kind, started_at, seen_at, pool, slots, host, version, draining, sandbox
) VALUES (
    :name, :kind, :started_at, :seen_at, :pool, :slots, :host,
    :version, :draining, :sandbox
)
    ON CONFLICT DO UPDATE SET kind = excluded.kind, seen_at = excluded.seen_at,
       pool = excluded.pool, slots = excluded.slots, host = excluded.host,
       version = excluded.version, draining = excluded.draining, sandbox = excluded.sandbox

-- runtimes --
SELECT name, kind, started_at, seen_at, pool, slots, host, version, draining, sandbox
  FROM noetl_runtime
 WHERE (:kind IS NULL OR kind = :kind) AND (:since IS NULL OR seen_at >= :since)
 ORDER BY name

-- leave --
DELETE FROM noetl_runtime WHERE name = :name

-- check_structure --
PRAGMA quick_check(20)

-- check_references --
PRAGMA foreign_key_check

-- check_heads --
SELECT execution_id, seq, checksum FROM noetl_execution ORDER BY execution_id

-- check_snapshots --
SELECT execution_id, body, checksum FROM noetl_snapshot ORDER BY execution_id

-- check_commands --
SELECT execution_id, command_id, body, checksum FROM noetl_lease
UNION ALL
SELECT execution_id, command_id, body, checksum FROM noetl_queue

-- check_results --
SELECT execution_id, key FROM noetl_result ORDER BY execution_id, key

-- check_nets --
SELECT digest, body FROM noetl_net ORDER BY digest

-- check_catalog --
SELECT catalog_id, path, version, kind, digest, content, description, created_at, checksum
  FROM noetl_catalog
 ORDER BY path, version
