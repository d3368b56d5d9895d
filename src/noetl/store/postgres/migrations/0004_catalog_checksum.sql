-- Covers the whole row. Rows that were written before have none.
ALTER TABLE noetl.catalog ADD COLUMN checksum bigint;
