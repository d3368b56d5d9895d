-- Statements about bodies that are kept by reference, for every store.

-- put_result --
INSERT INTO noetl.result (execution_id, key, sha256, size, body)
VALUES (:execution_id, :key, :sha256, :size, :body)
    ON CONFLICT (execution_id, key) DO NOTHING

-- result_checksum --
SELECT sha256, size FROM noetl.result WHERE execution_id = :execution_id AND key = :key

-- result --
SELECT sha256, size, body FROM noetl.result WHERE execution_id = :execution_id AND key = :key
