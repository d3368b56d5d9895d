"""The playbook language: YAML text in, a checked, immutable net out."""

from noetl.dsl.compile import Compiled, compile_text

__all__ = ["Compiled", "compile_text"]
