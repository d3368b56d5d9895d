-- Statements about documents and nets, beside those of store/catalog.sql.

-- lock_path --
-- Versions of a path are counted by one at a time; held to the end of the transaction.
SELECT pg_advisory_xact_lock(hashtextextended('noetl.catalog ' || :path, 0))
