-- Statements about bodies that are kept by reference.

-- put_result --
INSERT INTO noetl_result (execution_id, key, sha256, size, body) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT DO NOTHING

-- result_checksum --
SELECT sha256 FROM noetl_result WHERE execution_id = ? AND key = ?

-- result --
SELECT sha256, size, body FROM noetl_result WHERE execution_id = :execution_id AND key = :key
