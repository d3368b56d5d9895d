"""Rewrites the text of playbooks: `fmt` into the canonical layout, `migrate` into the canonical
dialect. Executions never come here; commands, editors and the API for them do.
"""
