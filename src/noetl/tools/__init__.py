"""The tool kinds: one file each, gathered in `registry`."""
