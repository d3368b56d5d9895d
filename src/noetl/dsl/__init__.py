"""The language: YAML text in, a checked, immutable net out; or what another document says."""

from noetl.dsl.compile import Compiled, compile_text, step_lines
from noetl.dsl.triggers import compile_document

__all__ = ["Compiled", "compile_document", "compile_text", "step_lines"]
