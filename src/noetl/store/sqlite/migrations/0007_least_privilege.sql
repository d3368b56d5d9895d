-- Which pools a token works for, and for which playbooks a credential is; an empty list: all.
ALTER TABLE noetl_token ADD COLUMN pools TEXT NOT NULL DEFAULT '[]';
ALTER TABLE noetl_credential ADD COLUMN playbooks TEXT NOT NULL DEFAULT '[]';
