-- What lists say of an execution beside its error: the step that failed, and whether a step waits for
-- a form or another event from outside. Empty: none does. NULL: the row was last written before.
ALTER TABLE noetl_execution ADD COLUMN failed_step TEXT;
ALTER TABLE noetl_execution ADD COLUMN waits TEXT;
