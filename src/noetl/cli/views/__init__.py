"""How executions and playbooks are shown, in print and on a terminal."""
