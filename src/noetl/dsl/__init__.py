"""The language: YAML text in, a checked, immutable net out.

Documents of other kinds are compiled by `noetl.dsl.triggers`, which few commands load.
"""

from noetl.dsl.compile import Compiled, compile_beside, compile_text, step_lines

__all__ = ["Compiled", "compile_beside", "compile_text", "step_lines"]
