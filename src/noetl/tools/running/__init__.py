"""How the tool kinds run. Loaded by the first call of a kind, never by looking at its shape."""
