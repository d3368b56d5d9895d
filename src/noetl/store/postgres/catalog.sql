-- Statements about documents and nets, beside those of store/catalog.sql.

-- lock_path --
-- Versions of a path are counted by one at a time; held to the end of the transaction.
SELECT pg_advisory_xact_lock(hashtextextended('noetl.catalog ' || :path, 0))

-- newest_entries --
SELECT catalog_id, path, version, kind, digest, content, description, created_at, checksum
  FROM (
        SELECT DISTINCT ON (path) *
          FROM noetl.catalog
         WHERE starts_with(path, :prefix)
         ORDER BY path, version DESC
       ) AS newest
 WHERE (:kind::text IS NULL OR kind = :kind)
 ORDER BY path
