"""What people see: executions and playbooks in print and on a terminal."""
