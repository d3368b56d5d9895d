"""The data plane: leases commands, runs their tasks, and reports the outcomes."""
