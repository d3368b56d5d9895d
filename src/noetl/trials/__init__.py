"""Tests of playbooks: the real engine and worker, stand-ins for tools, and time that jumps."""
