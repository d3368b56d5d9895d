"""The shell round the engine: it remembers, commits, hands out work and keeps time."""
