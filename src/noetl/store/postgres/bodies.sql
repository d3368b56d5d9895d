-- Statements about bodies that are kept by reference.

-- put_result --
INSERT INTO noetl.result (execution_id, key, sha256, size, body)
VALUES (:execution_id, :key, :sha256, :size, :body)
    ON CONFLICT (execution_id, key) DO NOTHING

-- result_checksum --
SELECT sha256, size FROM noetl.result WHERE execution_id = :execution_id AND key = :key

-- result --
SELECT sha256, body FROM noetl.result WHERE execution_id = :execution_id AND key = :key

-- result_is_whole --
SELECT sha256, encode(sha256(body), 'hex') = sha256 AS is_whole
  FROM noetl.result WHERE execution_id = :execution_id AND key = :key

-- result_piece --
SELECT substring(body FROM :first FOR :count) AS piece
  FROM noetl.result WHERE execution_id = :execution_id AND key = :key
