"""What the coverage-guided fuzzer runs: any bytes → problems or a net, and nothing else.

Started by test_fuzz.py in a process of its own, because the fuzzer instruments every module it
imports and ends by exiting. Arguments are libFuzzer's.
"""

import sys
from contextlib import suppress

import atheris

with atheris.instrument_imports(include=["noetl.dsl", "noetl.templates"]):
    from noetl.dsl import compile_text
    from noetl.templates import TemplateRefused
    from noetl.templates import compile_text as compile_template
    from noetl.tools.registry import tools

TOOLS = tools()


def try_one(data: bytes) -> None:
    text = data.decode("utf-8", errors="surrogateescape")
    compiled = compile_text(text, tools=TOOLS)
    has_errors = any(problem.severity == "error" for problem in compiled.problems)
    assert (compiled.net is None) == has_errors
    with suppress(TemplateRefused):
        compile_template(text)


if __name__ == "__main__":
    atheris.Setup(sys.argv, try_one)
    atheris.Fuzz()
