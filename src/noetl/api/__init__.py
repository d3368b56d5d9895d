"""The HTTP edge of the control plane: who calls, what they may do, and one call to a service."""
