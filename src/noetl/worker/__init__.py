"""The data plane: leases commands, runs their tasks, reports what became of them."""
