"""The storage of executions: one set of protocols, one implementation per database."""
