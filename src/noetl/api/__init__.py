"""The HTTP edge of the control plane: who asks, what they may, and one call to a service."""
