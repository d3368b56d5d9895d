"""Where executions are kept: one protocol, one implementation per database."""
