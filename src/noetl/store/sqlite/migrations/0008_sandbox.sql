-- What a worker keeps code and programs of tasks in; empty where it did not say.
ALTER TABLE noetl_runtime ADD COLUMN sandbox TEXT NOT NULL DEFAULT '';
