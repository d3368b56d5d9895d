-- Statements about bodies that are kept by reference.

-- put_result --
INSERT INTO noetl.result (execution_id, key, sha256, size, body)
VALUES (%(execution_id)s, %(key)s, %(sha256)s, %(size)s, %(body)s)
    ON CONFLICT (execution_id, key) DO NOTHING

-- result_checksum --
SELECT sha256, size FROM noetl.result WHERE execution_id = %(execution_id)s AND key = %(key)s

-- result --
SELECT sha256, body FROM noetl.result WHERE execution_id = %(execution_id)s AND key = %(key)s

-- result_is_whole --
SELECT encode(sha256(body), 'hex') = sha256 AS is_whole
  FROM noetl.result WHERE execution_id = %(execution_id)s AND key = %(key)s

-- result_piece --
SELECT substring(body FROM %(first)s FOR %(count)s) AS piece
  FROM noetl.result WHERE execution_id = %(execution_id)s AND key = %(key)s
