"""Processes of tasks: commands and their output, the spawner, namespaces, the Python sandbox."""
