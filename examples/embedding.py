"""NoETL inside a program of yours: a tool of your own, a playbook, and what happens in it.

    python examples/embedding.py

The database is a file in a temporary folder here; give `embedded` a path that stays, and what was
interrupted goes on when the program starts again.
"""

import asyncio
import tempfile

import msgspec

import noetl

PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: greetings, path: demo/greetings}
workload: {names: [ann, bob, zoe]}
workflow:
  - step: greet
    loop: {in: "{{ workload.names }}", iterator: name}
    tool: {kind: greet, whom: "{{ iter.name }}"}
    next: end
  - step: end
    tool: {kind: noop}
"""


class Greeting(msgspec.Struct, forbid_unknown_fields=True):
    """What a task of `kind: greet` says."""

    whom: str


async def greet(config: Greeting, context: noetl.ToolContext) -> noetl.Outcome:
    if not config.whom:
        return noetl.failed("client_error", "there is nobody to greet")
    context.log(f"greeting {config.whom}\n")
    return noetl.ok({"text": f"Hello, {config.whom.title()}!"})


GREET = noetl.Tool(kind="greet", config=Greeting, summary="Greets somebody.", run=greet)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with noetl.embedded(f"sqlite:///{folder}/demo.db", tools=[GREET]) as client:
            await client.register(PLAYBOOK)
            started = await client.start("demo/greetings", key="greetings of today")
            async for event in client.follow(started.execution_id):
                print(f"{event.seq:3} {event.event_type:30} {event.step or ''}")
            ended = await client.wait(started.execution_id)
            print(ended.status, [one["text"] for one in ended.steps[0].result["results"]])


if __name__ == "__main__":
    asyncio.run(main())
