-- Statements about documents and nets, beside those of store/catalog.sql.

-- newest_entries --
SELECT catalog_id, path, version, kind, digest, content, description, created_at, checksum
  FROM noetl_catalog AS entry
 WHERE version = (SELECT max(version) FROM noetl_catalog WHERE path = entry.path)
   AND (:kind IS NULL OR kind = :kind)
   AND substr(path, 1, length(:prefix)) = :prefix
 ORDER BY path
