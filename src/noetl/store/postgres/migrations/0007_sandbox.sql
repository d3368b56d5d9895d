-- What a worker keeps code and programs of tasks in; empty where it did not say.
ALTER TABLE noetl.runtime ADD COLUMN sandbox text NOT NULL DEFAULT '';
