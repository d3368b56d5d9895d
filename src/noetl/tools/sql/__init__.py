"""What the SQL kinds share: config, statements as text, rows for tables, work in threads."""
