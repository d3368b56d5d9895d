"""How a playbook may be written: the document and its workbook."""

from __future__ import annotations

from noetl.dsl import nodes
from noetl.dsl.flow_shapes import A_LOOP, LOOP
from noetl.dsl.grammar import (
    Anything,
    Either,
    Field,
    Flag,
    Inspection,
    ListOf,
    MapOf,
    Name,
    Number,
    OneOf,
    Record,
    Schema,
    Shape,
    StepName,
    Text,
    define,
    has_key,
    is_list,
    is_mapping,
    older_keys,
    one_of,
)
from noetl.dsl.nodes import Mapping, Node
from noetl.dsl.policy_shapes import (
    PLACED_KNOBS,
    PLACEMENT,
    QUOTAS,
    TASKS,
    TRACING,
    VALUES,
    astray_policies,
)
from noetl.dsl.schemas import RESULT
from noetl.dsl.step_shapes import A_STEP, FIELD
from noetl.dsl.task_shapes import ASSERT, PIPELINE, TASK
from noetl.model.net import CompensatedEnd, Locality, OnLimit

API_VERSION = "noetl.io/v2"
KEYCHAIN_KINDS = (
    "secret_manager",
    "postgres_credential",
    "credential",
    "secrets",
    "static",
    "env",
    "file",
    "bearer",
    "basic",
    "oauth2",
)

# --- The document ------------------------------------------------------------------------------


class _Metadata(Record):
    """Further keys are kept as labels."""

    def schema(self) -> Schema:
        return super().schema() | {"additionalProperties": True}


METADATA = _Metadata(
    "`metadata`",
    {
        "name": Field(Text(), "Short name."),
        "path": Field(Text(), "Its path in the catalog."),
        "version": Field(Text(numbers=True), "The author's own version."),
        "description": Field(Text(), "What it is for."),
        "desc": Field(Text(), same_as="description"),
        "labels": Field(VALUES, "Labels of its executions, to find and count them by."),
        "tags": Field(ListOf(Text(), "texts"), "Words to find it by."),
        "owner": Field(Text(), "Whom to ask."),
    },
)
KEYCHAIN_ENTRY = Record(
    "a keychain entry",
    {
        "name": Field(Name(hyphens=True), "Name in `keychain.<name>` and `auth`.", required=True),
        "kind": Field(OneOf(*KEYCHAIN_KINDS), "Where it comes from.", required=True),
        "desc": Field(Text(), "What it is for."),
        **{
            key: Field(Anything(), help_text)
            for key, help_text in {
                "credential": "Name of the stored credential. Default: the entry's name.",
                "provider": "Which secret manager.",
                "path": "Path of the secret.",
                "key": "Field of the secret.",
                "map": "secrets, secret_manager: field → path of its own.",
                "version": "Version of the secret.",
                "project": "Project or account of the secret manager.",
                "region": "Region of the secret manager.",
                "url": "Address of the secret manager.",
                "auth": "Credential to read it with.",
                "value": "static: the value.",
                "data": "static: several fields.",
                "variable": "env: name of the variable.",
                "file": "file: where it lies.",
                "token": "bearer: the token.",
                "username": "basic: the user.",
                "password": "basic: the password.",
                "token_url": "oauth2: where tokens are issued.",
                "client_id": "oauth2: the client.",
                "client_secret": "oauth2: its secret.",
                "scopes": "oauth2: what to ask for.",
                "audience": "oauth2: for whom.",
                "ttl": "How long a resolved value is kept.",
                "scope": "Shared by `global` or kept per `execution`.",
            }.items()
        },
    }
    | older_keys(
        endpoint="oauth2: write `token_url`.",
        method="oauth2: it is always POST; leave it out.",
        headers="oauth2: a token request is always a form; leave it out.",
        auto_renew="oauth2: tokens are always renewed; leave it out.",
        grant_type="oauth2: it is always client_credentials; leave it out.",
    ),
)
EXECUTOR_POLICY = Record(
    "the executor's policy",
    {
        "defaults": Field(
            Record(
                "executor defaults",
                {
                    "timeouts": Field(VALUES, "Default timeouts: step, task, connect, read."),
                    "resources": Field(VALUES, "Default resources."),
                },
            )
        ),
        "compensate_on": Field(
            ListOf(one_of(CompensatedEnd), "ends"),
            "Which ends of an execution undo what is done. Default [failure].",
        ),
        "results": Field(
            Record(
                "a result policy",
                {"reference_first": Field(Flag(), "Keep results above 1 KiB by reference.")},
            )
        ),
        "limits": Field(
            Record(
                "limits",
                {
                    "max_payload_bytes": Field(Number(whole=True, least=1, templates=False)),
                    "max_attempts": Field(Number(whole=True, least=1, templates=False)),
                    "max_in_flight": Field(Number(whole=True, least=1, templates=False)),
                    "max_jumps": Field(Number(whole=True, least=1, templates=False)),
                    "timeout": Field(Number(least=0, templates=False)),
                },
            ),
            "What nothing inside may exceed.",
        ),
        "quotas": Field(QUOTAS, "What the calls of one execution may use."),
        "placement": Field(PLACEMENT, "Which workers its steps need, unless they say otherwise."),
        "tracing": Field(TRACING, "How its steps are traced, unless they say otherwise."),
    },
    astray=astray_policies("the executor"),
)
CONCURRENCY = Record(
    "`concurrency`",
    {
        "key": Field(
            Text(numbers=True),
            "A template; executions with the same value share the limit.",
            required=True,
        ),
        "limit": Field(Number(whole=True, least=1, templates=False), "Default 1."),
        "on_limit": Field(
            one_of(OnLimit),
            "What happens when the limit is reached: wait (default), fail, or cancel one.",
        ),
    },
)
_EXECUTOR_OLDER = older_keys(
    version="It has no effect; leave it out.",
    requires="Its tools are checked; it has no other effect. Leave it out.",
    defaults="Write `spec.policy.defaults.timeouts.step`.",
)
EXECUTOR = Record(
    "the executor",
    {
        "kind": Field(one_of(Locality), "Where it wants to run."),
        "profile": Field(Text(), "A name for people; it changes nothing."),
        **_EXECUTOR_OLDER,
        "spec": Field(
            Record(
                "the executor's `spec`",
                {
                    "entry_step": Field(StepName(), "Where the first token goes."),
                    "no_next_is_error": Field(Flag(), "A token with no way out is an error."),
                    "policy": Field(EXECUTOR_POLICY, "Defaults and limits."),
                    "concurrency": Field(
                        CONCURRENCY, "How many with the same key may run at once."
                    ),
                    "limits": Field(
                        Record(
                            "limits of executions",
                            {
                                "max_running": Field(
                                    Number(whole=True, least=1, templates=False),
                                    "How many executions of the playbook may run at once.",
                                )
                            },
                        ),
                        "What bounds its executions.",
                    ),
                    "on_failure": Field(
                        Text(), "The step, or the path of a playbook, that runs when it fails."
                    ),
                    "priority": Field(
                        Number(whole=True, templates=False),
                        "Higher ones go first where commands or executions wait.",
                    ),
                    "result": Field(RESULT, "What an execution yields when it completes."),
                    "inputs": Field(
                        MapOf(Record("an input", FIELD)),
                        "What the workload must hold, by name.",
                    ),
                    **_EXECUTOR_OLDER,
                }
                | PLACED_KNOBS,
            )
        ),
    },
)
_BLOCK_FIELDS = {
    "name": Field(Text(), "Name that tasks call it by."),
    "desc": Field(Text(), "What it is for."),
    "description": Field(Text(), same_as="desc"),
    "args": Field(VALUES, "Default inputs."),
    "input": Field(VALUES, same_as="args"),
    "with": Field(VALUES, same_as="args"),
    "assert": Field(ASSERT, "What must be there before and after it."),
    "loop": Field(A_LOOP, "Run the tasks once per element."),
    "tool": Field(TASKS, "The task or tasks.", required=True),
}


class BlockShape(Shape):
    """A workbook entry: a pipeline under `tool`, or a task written out."""

    _pipeline = Record("a workbook entry", _BLOCK_FIELDS)

    def check(self, node: Node, what: str, look: Inspection) -> None:
        if isinstance(node, Mapping) and "kind" in node.entries:
            TASK.check(_without_loop(node, look), what, look)
        elif is_list(node):
            PIPELINE.check(node, what, look)
        else:
            self._pipeline.check(node, what, look)

    def schema(self) -> Schema:
        return {
            "anyOf": [
                self._pipeline.schema(),
                {"type": "object", "required": ["kind"]},
                {"type": "array", "items": TASKS.schema()},
            ]
        }


class ListedBlock(Shape):
    """A workbook entry in a list says its own name."""

    def check(self, node: Node, what: str, look: Inspection) -> None:
        BlockShape().check(node, what, look)
        if isinstance(node, Mapping) and "name" not in node.entries:
            look.report.add("missing-key", "a workbook entry in a list needs `name`.", node.place)

    def schema(self) -> Schema:
        return {"allOf": [_BLOCK.schema(), {"required": ["name"]}]}


def _without_loop(node: Mapping, look: Inspection) -> Mapping:
    """A task entry may carry a loop of its own, which no other task may."""
    if "loop" not in node.entries:
        return node
    LOOP.check(node.entries["loop"], "`loop`", look)
    task = Mapping(node.place)
    for key, value in node.entries.items():
        if key != "loop":
            task.put(key, node.keys[key], value)
    return task


def is_task_table(node: Node) -> bool:
    """`workbook: {tasks: {…}}`, the long way to write it."""
    return (
        isinstance(node, Mapping)
        and list(node.entries) == ["tasks"]
        and not has_key("kind", "tool")(node.entries["tasks"])
    )


_BLOCK = define("block", BlockShape())
_BLOCKS = Either(
    "entries by name, or a list of entries with `name`",
    (is_list, ListOf(ListedBlock(), "entries")),
    (lambda node: is_mapping(node) or nodes.is_null(node), MapOf(_BLOCK)),
)
WORKBOOK = Either(
    "entries by name, or a list of entries with `name`",
    (is_task_table, Record("the workbook", {"tasks": Field(_BLOCKS)})),
    (lambda _: True, _BLOCKS),
)

PLAYBOOK = Record(
    "a playbook",
    {
        "apiVersion": Field(Text(), f"Always {API_VERSION}.", required=True),
        "kind": Field(Text(), "Always Playbook.", required=True),
        "metadata": Field(METADATA, "What it is called."),
        "name": Field(Text(), "Belongs into `metadata`."),
        "path": Field(Text(), "Belongs into `metadata`."),
        "keychain": Field(ListOf(KEYCHAIN_ENTRY, "entries"), "Secrets it needs."),
        "executor": Field(EXECUTOR, "How and where to run."),
        "workload": Field(VALUES, "Inputs with their defaults."),
        "workflow": Field(ListOf(A_STEP, "steps", filled=True), "Steps.", required=True),
        "workbook": Field(WORKBOOK, "Named tasks to call from steps."),
    },
    removed={
        "vars": "put inputs into `workload`; state is written by `set_ctx` or a step's `vars`.",
        "steps": "list the steps under `workflow`.",
        "tasks": "list the steps under `workflow`; tasks to call by name stand under `workbook`.",
        "jobs": "list the steps under `workflow`.",
        "inputs": "types of inputs stand under `executor.spec.inputs`, defaults under `workload`.",
        "spec": "what a playbook asks of its runtime stands under `executor.spec`.",
    },
)
