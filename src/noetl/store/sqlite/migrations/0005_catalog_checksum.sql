-- Covers the whole row. Rows that were written before have none.
ALTER TABLE noetl_catalog ADD COLUMN checksum INTEGER;
