-- Which pools a token works for, and for which playbooks a credential is; an empty list: all.
ALTER TABLE noetl.token ADD COLUMN pools text NOT NULL DEFAULT '[]';
ALTER TABLE noetl.credential ADD COLUMN playbooks text NOT NULL DEFAULT '[]';
