-- Statements about documents and nets.

-- put_net --
INSERT INTO noetl.net (digest, body) VALUES (%(digest)s, %(body)s) ON CONFLICT DO NOTHING

-- net --
SELECT body FROM noetl.net WHERE digest = %(digest)s

-- lock_path --
-- Versions of a path are counted by one at a time; held to the end of the transaction.
SELECT pg_advisory_xact_lock(hashtextextended('noetl.catalog ' || %(path)s, 0))

-- insert_catalog_entry --
INSERT INTO noetl.catalog (
    path, version, catalog_id, kind, digest, content, description, created_at, checksum
) VALUES (
    %(path)s, %(version)s, %(catalog_id)s, %(kind)s, %(digest)s, %(content)s, %(description)s,
    %(created_at)s, %(checksum)s
)

-- newest_entry --
SELECT catalog_id, path, version, kind, digest, content, description, created_at, checksum
  FROM noetl.catalog
 WHERE path = %(path)s
 ORDER BY version DESC
 LIMIT 1

-- entry_of_version --
SELECT catalog_id, path, version, kind, digest, content, description, created_at, checksum
  FROM noetl.catalog
 WHERE path = %(path)s AND version = %(version)s

-- entry_of_id --
SELECT catalog_id, path, version, kind, digest, content, description, created_at, checksum
  FROM noetl.catalog
 WHERE catalog_id = %(catalog_id)s

-- newest_entries --
SELECT catalog_id, path, version, kind, digest, content, description, created_at, checksum
  FROM (
        SELECT DISTINCT ON (path) *
          FROM noetl.catalog
         WHERE starts_with(path, %(prefix)s)
         ORDER BY path, version DESC
       ) AS newest
 WHERE (%(kind)s::text IS NULL OR kind = %(kind)s)
 ORDER BY path

-- versions --
-- Versions of a path, newest first.
SELECT catalog_id, path, version, kind, digest, content, description, created_at, checksum
  FROM noetl.catalog
 WHERE path = %(path)s AND version < %(before)s
 ORDER BY version DESC
 LIMIT %(limit)s
