-- Statements about bodies that are kept by reference.

-- result_is_whole --
SELECT sha256, encode(sha256(body), 'hex') = sha256 AS is_whole
  FROM noetl.result WHERE execution_id = :execution_id AND key = :key

-- result_piece --
SELECT substring(body FROM :first FOR :count) AS piece
  FROM noetl.result WHERE execution_id = :execution_id AND key = :key
