-- Statements about the database itself, beside those of store/store.sql.

-- probe --
UPDATE noetl_installation SET installation_id = installation_id

-- check_structure --
PRAGMA quick_check(20)

-- check_references --
PRAGMA foreign_key_check

-- check_commands --
SELECT execution_id, command_id, pool, NULL AS priority, NULL AS turn, 0 AS is_corrupted,
       body, checksum
  FROM noetl_lease
UNION ALL
SELECT execution_id, command_id, pool, priority, turn, is_corrupted, body, checksum
  FROM noetl_queue

-- make_another --
-- Makes a copy of a database that nobody has used yet one of its own.
UPDATE noetl_installation SET installation_id = lower(hex(randomblob(16)))
