-- Statements about documents and nets, for every store.

-- put_net --
INSERT INTO noetl.net (digest, body) VALUES (:digest, :body) ON CONFLICT DO NOTHING

-- net --
SELECT body FROM noetl.net WHERE digest = :digest

-- insert_catalog_entry --
INSERT INTO noetl.catalog (
    path, version, catalog_id, kind, digest, content, description, created_at, checksum
) VALUES (
    :path, :version, :catalog_id, :kind, :digest, :content, :description,
    :created_at, :checksum
)

-- newest_entry --
SELECT catalog_id, path, version, kind, digest, content, description, created_at, checksum
  FROM noetl.catalog
 WHERE path = :path
 ORDER BY version DESC
 LIMIT 1

-- entry_of_version --
SELECT catalog_id, path, version, kind, digest, content, description, created_at, checksum
  FROM noetl.catalog
 WHERE path = :path AND version = :version

-- entry_of_id --
SELECT catalog_id, path, version, kind, digest, content, description, created_at, checksum
  FROM noetl.catalog
 WHERE catalog_id = :catalog_id

-- versions --
-- Versions of a path, newest first.
SELECT catalog_id, path, version, kind, digest, content, description, created_at, checksum
  FROM noetl.catalog
 WHERE path = :path AND version < :before
 ORDER BY version DESC
 LIMIT :limit

-- newest_entries --
SELECT catalog_id, path, version, kind, digest, content, description, created_at, checksum
  FROM noetl.catalog AS entry
 WHERE version = (SELECT max(version) FROM noetl.catalog AS other WHERE other.path = entry.path)
   AND (CAST(:kind AS text) IS NULL OR kind = :kind)
   AND substr(path, 1, length(CAST(:prefix AS text))) = :prefix
 ORDER BY path
