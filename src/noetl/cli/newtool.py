"""The package that `noetl tools new` writes: a tool kind, a test of its promises, an example."""

from __future__ import annotations

import re

from noetl.version import __version__

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "noetl-DASHED"
version = "0.1.0"
description = "The tool kind NAME for NoETL."
requires-python = ">=3.11"
dependencies = ["noetl>=VERSION"]

[project.optional-dependencies]
test = ["pytest>=8"]

[project.entry-points."noetl.tools"]
NAME = "noetl_NAME:TOOL"

[tool.hatch.build.targets.wheel]
packages = ["src/noetl_NAME"]
"""

MODULE = '''\
"""kind: NAME. Say here what it does."""

from __future__ import annotations

import asyncio
from typing import Annotated

from noetl.model.outcome import Outcome, ok
from noetl.tools.base import Credential, Duration, Tool, ToolConfig, ToolContext, about
from noetl.tools.credentials import fields_of
from noetl.tools.failures import Failed, within
from noetl.tools.limits import shortest


class CLASS(ToolConfig, frozen=True, kw_only=True):
    """What a playbook writes under `kind: NAME`."""

    text: Annotated[str | None, about("What to say.")] = None
    pause: Annotated[Duration, about("How long to wait before.")] = 0
    auth: Annotated[Credential | None, about("Credential whose `user` is greeted.")] = None
    timeout: Annotated[Duration | None, about("How long it may take.")] = None


async def run(config: CLASS, context: ToolContext) -> Outcome:
    """Import large libraries here, not above: every command of NoETL loads this module."""
    if not config.text:
        raise Failed("client_error", "There is nothing to say: `text` is empty.")
    async with within(shortest(config.timeout, context.timeout), "It took longer than"):
        await asyncio.sleep(shortest(config.pause) or 0)
    # Of a credential only what is not a secret may go into the result or the log.
    fields = await fields_of(config.auth, context)
    context.log(f"saying {config.text}\\n")
    return ok({"said": config.text, "to": fields.get("user"), "inputs": context.inputs})


TOOL = Tool(
    kind="NAME",
    summary="Says something.",
    config=CLASS,
    run=run,
    errors=("client_error", "timeout", "auth"),
    aliases={"credential": "auth"},
    needs=(("text",),),
)
'''

TEST = '''\
"""kind: NAME keeps the contract of all kinds, and does what it says."""

import pytest
from noetl_NAME import TOOL

from noetl.tools.testing import CANARY, ToolContract, Trial, Trials


class TestCLASS(ToolContract):
    tool = TOOL

    @pytest.fixture
    def trials(self):
        credentials = {"someone": {"user": "ada", "password": CANARY}}
        return Trials(
            good=Trial({"text": "hello", "auth": "someone"}, credentials=credentials),
            failing=(
                Trial({"text": ""}, fails="client_error"),
                Trial({"text": "hello", "auth": "nobody"}, fails="auth"),
            ),
            endless=Trial({"text": "hello", "pause": 3600}),
        )

    def test_it_says_what_it_is_told(self):
        ran = self.ran(Trial({"text": "hello"}, inputs={"n": 1}))

        assert ran.outcome.result == {"said": "hello", "to": None, "inputs": {"n": 1}}
        assert ran.log == "saying hello\\n"
'''

EXAMPLE = """\
# Says hello.
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: NAME_example, path: examples/NAME}
workload: {whom: world}
workflow:
  - step: start
    tool:
      kind: NAME
      text: "hello {{ workload.whom }}"
"""

README = """\
# noetl-DASHED

The tool kind `NAME` for [NoETL](https://pypi.org/project/noetl/) playbooks.

```console
pip install --editable ".[test]"
python -m pytest
noetl tools show NAME
noetl run example.yaml
```
"""


def is_name(name: str) -> bool:
    """Whether this can name a kind: it is a key in YAML and a module in Python."""
    return re.fullmatch(r"[a-z][a-z0-9_]{0,40}", name) is not None


def files_of(name: str) -> dict[str, str]:
    """Path in the package → text."""
    files = {
        "pyproject.toml": PYPROJECT,
        "README.md": README,
        "example.yaml": EXAMPLE,
        f"src/noetl_{name}/__init__.py": MODULE,
        f"tests/test_{name}.py": TEST,
    }
    words = {
        "NAME": name,
        "DASHED": name.replace("_", "-"),
        "CLASS": "".join(part.capitalize() for part in name.split("_")),
        "VERSION": __version__,
    }
    pattern = re.compile("|".join(words))
    return {
        place: pattern.sub(lambda found: words[found[0]], text) for place, text in files.items()
    }
