-- Statements about the database itself: who uses it, and whether it is whole, for every store.

-- installation --
SELECT installation_id FROM noetl.installation

-- beat --
INSERT INTO noetl.runtime (
    name, kind, started_at, seen_at, pool, slots, host, version, draining, sandbox
) VALUES (
    :name, :kind, :started_at, :seen_at, :pool, :slots, :host, :version, :draining, :sandbox
)
    ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, seen_at = excluded.seen_at,
       pool = excluded.pool, slots = excluded.slots, host = excluded.host,
       version = excluded.version, draining = excluded.draining, sandbox = excluded.sandbox

-- runtimes --
SELECT name, kind, started_at, seen_at, pool, slots, host, version, draining, sandbox
  FROM noetl.runtime
 WHERE (CAST(:kind AS text) IS NULL OR kind = :kind)
   AND (CAST(:since AS double precision) IS NULL OR seen_at >= :since)
 ORDER BY name

-- leave --
DELETE FROM noetl.runtime WHERE name = :name

-- check_snapshots --
SELECT execution_id, body, checksum FROM noetl.snapshot ORDER BY execution_id

-- check_heads --
SELECT execution_id, seq, checksum FROM noetl.execution
 WHERE execution_id > :execution_id
 ORDER BY execution_id
 LIMIT :rows

-- check_log --
SELECT seq, events, checksum FROM noetl.log
 WHERE execution_id = :execution_id
 ORDER BY seq

-- check_results --
SELECT execution_id, key FROM noetl.result
 WHERE (execution_id, key) > (:execution_id, :key)
 ORDER BY execution_id, key
 LIMIT :rows

-- check_nets --
SELECT digest, body FROM noetl.net ORDER BY digest

-- check_catalog --
SELECT catalog_id, path, version, kind, digest, content, description, created_at, checksum
  FROM noetl.catalog
 ORDER BY path, version
