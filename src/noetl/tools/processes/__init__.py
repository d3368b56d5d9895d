"""Processes that run programs of tasks."""
