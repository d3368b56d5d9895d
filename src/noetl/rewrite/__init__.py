"""Texts written anew: in canonical layout (`fmt`), or in the canonical dialect (`migrate`).

Not on the way of an execution: nothing but commands, editors and the API for them comes here.
"""
