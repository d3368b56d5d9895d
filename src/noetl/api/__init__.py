"""The HTTP edge of the control plane: authenticate, check the right, call one service."""
