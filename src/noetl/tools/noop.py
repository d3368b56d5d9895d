"""kind: noop. Does nothing; used for its policy rules, `args` and `set`."""

from __future__ import annotations

from typing import Annotated, Any

from noetl.model.outcome import Outcome
from noetl.model.toolshape import yielded_by
from noetl.tools.base import Tool, ToolConfig, ToolContext, about


class Noop(ToolConfig, frozen=True, kw_only=True):
    """What a playbook writes under `kind: noop`."""

    result: Annotated[Any, about("The value this task yields; its inputs when left out.")] = None


async def run(config: Noop, context: ToolContext) -> Outcome:
    return Outcome(status="ok", result=context.inputs if config.result is None else config.result)


EXAMPLE = """\
- step: count_pages
  tool:
    - name: init
      kind: noop
      spec:
        policy:
          rules:
            - else:
                then: { do: continue, set_iter: { page: 1 } }
    - name: answer
      kind: noop
      result: { pages: "{{ iter.page }}" }
"""

TOOL = Tool(
    kind="noop",
    summary="Does nothing; carries policy rules.",
    config=Noop,
    run=run,
    has_effect=False,
    is_harmless=True,
    example=EXAMPLE,
    yields=lambda config: yielded_by(config.get("result")),
)
