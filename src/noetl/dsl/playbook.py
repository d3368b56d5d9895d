"""The playbook: from the root mapping to the net."""

from __future__ import annotations

from typing import get_args

import msgspec

from noetl.dsl import nodes
from noetl.dsl.building import Building, Where
from noetl.dsl.grammar import (
    CAPACITY,
    CATALOG_NAME,
    HYPHENATED_NAME,
    PRIORITY,
    STEP_NAME,
    Also,
    Anything,
    AsWritten,
    Flag,
    Inspection,
    ListOf,
    MapOf,
    OneOf,
    Placed,
    Record,
    Text,
    field,
    one_of,
    warn_unused,
)
from noetl.dsl.layers import (
    VALUES,
    PlacedKnobs,
    WrittenLimits,
    WrittenPlacement,
    WrittenQuotas,
    WrittenTracing,
    bounds,
    in_seconds,
    knobs,
    merge,
)
from noetl.dsl.nodes import Node
from noetl.dsl.policies import astray_policies
from noetl.dsl.schemas import WrittenResult, result_schema
from noetl.dsl.steps import A_STEP, FIELD, WrittenStep, form_fields, step, tracing
from noetl.dsl.workbook import WORKBOOK, WrittenWorkbook, workbook
from noetl.model.net import (
    PLAYBOOK,
    CompensatedEnd,
    Concurrency,
    Executor,
    FormField,
    KeychainEntry,
    Limits,
    Locality,
    Net,
    OnLimit,
    Step,
    Task,
    Values,
)

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

REFERENCE_FIRST_BYTES = 1024
"""The inline limit of results under `reference_first`."""

# --- How it is written ---------------------------------------------------------------------------


class WrittenMetadata(
    Placed,
    title="`metadata`",
    first=("name", "path", "version", "description"),
    schema={"additionalProperties": True},
):
    """The name, path and description of a document. Further keys are kept as labels."""

    name: str | None = field(CATALOG_NAME, "Short name.")
    path: str | None = field(CATALOG_NAME, "Its path in the catalog.")
    version: str | None = field(Text(numbers=True), "The author's own version.")
    description: str | None = field(Text(), "What it is for.")
    desc = Also(description)
    labels: Node | None = field(VALUES, "Labels of its executions, to find and count them by.")
    tags: tuple[str, ...] = field(ListOf(Text(), "texts"), "Words to find it by.")
    owner: str | None = field(Text(), "Whom to ask.")


_OF_ONE_KIND = {
    "static": ("value", "data"),
    "env": ("variable",),
    "file": ("file",),
    "bearer": ("token",),
    "basic": ("username", "password"),
    "oauth2": ("token_url", "client_id", "client_secret", "scopes", "audience"),
}
"""Keys of a keychain entry that only one of its kinds reads."""


class WrittenSecret(
    Placed,
    title="a keychain entry",
    first=("name", "kind"),
    older={
        "endpoint": "oauth2: write `token_url`.",
        "method": "oauth2: it is always POST; leave it out.",
        "headers": "oauth2: a token request is always a form; leave it out.",
        "auto_renew": "oauth2: tokens are always renewed; leave it out.",
        "grant_type": "oauth2: it is always client_credentials; leave it out.",
    },
):
    """A keychain entry: where a secret comes from."""

    name: str | None = field(
        HYPHENATED_NAME, "Name in `keychain.<name>` and `auth`.", required=True
    )
    kind: str | None = field(OneOf(*KEYCHAIN_KINDS), "Where it comes from.", required=True)
    desc: str | None = field(Text(), "What it is for.")
    credential: Node | None = field(
        Anything(), "Name of the stored credential. Default: the entry's name."
    )
    provider: Node | None = field(Anything(), "Which secret manager.")
    path: Node | None = field(Anything(), "Path of the secret.")
    key: Node | None = field(Anything(), "Field of the secret.")
    map: Node | None = field(Anything(), "secrets, secret_manager: field → path of its own.")
    version: Node | None = field(Anything(), "Version of the secret.")
    project: Node | None = field(Anything(), "Project or account of the secret manager.")
    region: Node | None = field(Anything(), "Region of the secret manager.")
    url: Node | None = field(Anything(), "Address of the secret manager.")
    auth: Node | None = field(Anything(), "Credential to read it with.")
    value: Node | None = field(Anything(), "static: the value, or several fields.")
    data: Node | None = field(Anything(), "static: several fields.")
    variable: Node | None = field(Anything(), "env: name of the variable.")
    file: Node | None = field(Anything(), "file: where it lies.")
    token: Node | None = field(Anything(), "bearer: the token.")
    username: Node | None = field(Anything(), "basic: the user.")
    password: Node | None = field(Anything(), "basic: the password.")
    token_url: Node | None = field(Anything(), "oauth2: where tokens are issued.")
    client_id: Node | None = field(Anything(), "oauth2: the client.")
    client_secret: Node | None = field(Anything(), "oauth2: its secret.")
    scopes: Node | None = field(Anything(), "oauth2: what to ask for.")
    audience: Node | None = field(Anything(), "oauth2: for whom.")
    ttl: Node | None = field(Anything(), "How long a resolved value is kept.")
    scope: Node | None = field(Anything(), "Shared by `global` or kept per `execution`.")

    def check(self, look: Inspection) -> None:
        for kind, keys in _OF_ONE_KIND.items():
            if self.kind is not None and self.kind != kind:
                why = f"in an entry of kind {self.kind}: it belongs to kind {kind}."
                warn_unused(self.node, keys, why, look)


class _Defaults(Placed, title="executor defaults"):
    timeouts: Node | None = field(VALUES, "Default timeouts: step, task, connect, read.")
    resources: Node | None = field(VALUES, "Default resources.")


class _Results(Placed, title="a result policy"):
    reference_first: bool | None = field(Flag(), "Keep results above 1 KiB by reference.")


class _ExecutorPolicy(
    Placed, title="the executor's policy", astray=astray_policies("the executor")
):
    defaults: _Defaults = field(_Defaults)
    compensate_on: tuple[CompensatedEnd, ...] = field(
        ListOf(one_of(CompensatedEnd), "ends"),
        "Which ends of an execution undo what is done. Default [failure].",
    )
    results: _Results = field(_Results)
    limits: WrittenLimits = field(WrittenLimits, "What nothing inside may exceed.")
    quotas: WrittenQuotas = field(WrittenQuotas, "What the calls of one execution may use.")
    placement: WrittenPlacement = field(
        WrittenPlacement, "Which workers its steps need, unless they say otherwise."
    )
    tracing: WrittenTracing = field(
        WrittenTracing, "How its steps are traced, unless they say otherwise."
    )


class _Concurrency(Placed, title="`concurrency`"):
    key: Node | None = field(
        AsWritten(Text(numbers=True)),
        "A template; executions with the same value share the limit.",
        required=True,
    )
    limit: int | None = field(CAPACITY, "Default 1.")
    on_limit: OnLimit | None = field(
        one_of(OnLimit),
        "What happens when the limit is reached: wait (default), fail, or cancel one.",
    )


class _ExecutionLimits(Placed, title="limits of executions"):
    max_running: int | None = field(
        CAPACITY, "How many executions of the playbook may run at once."
    )


_EXECUTOR_OLDER = {
    "version": "It has no effect; leave it out.",
    "requires": "Its tools are checked; it has no other effect. Leave it out.",
    "defaults": "Write `spec.policy.defaults.timeouts.step`.",
}


class _ExecutorSpec(PlacedKnobs, title="the executor's `spec`", older=_EXECUTOR_OLDER):
    entry_step: Node | None = field(STEP_NAME, "Where the first token goes.")
    no_next_is_error: bool | None = field(Flag(), "A token with no way out is an error.")
    policy: _ExecutorPolicy = field(_ExecutorPolicy, "Defaults and limits.")
    concurrency: _Concurrency = field(_Concurrency, "How many with the same key may run at once.")
    limits: _ExecutionLimits = field(_ExecutionLimits, "What bounds its executions.")
    on_failure: str | None = field(
        Text(), "The step, or the path of a playbook, that runs when it fails."
    )
    priority: int | None = field(
        PRIORITY, "Higher ones go first where commands or executions wait."
    )
    result: WrittenResult = field(WrittenResult, "What an execution yields when it completes.")
    inputs: Node | None = field(
        AsWritten(MapOf(Record("an input", FIELD))), "What the workload must hold, by name."
    )


class WrittenExecutor(
    Placed, title="the executor", older=_EXECUTOR_OLDER, first=("kind", "profile", "spec")
):
    """How and where executions run."""

    kind: Locality | None = field(one_of(Locality), "Where it wants to run.")
    profile: str | None = field(Text(), "A name for people; it changes nothing.")
    spec: _ExecutorSpec = field(_ExecutorSpec)


HEADER = ("apiVersion", "kind", "name", "path", "metadata")


class WrittenPlaybook(
    Placed,
    title="a playbook",
    first=(*HEADER, "keychain", "executor", "workload", "workflow", "workbook", "spec"),
    removed={
        "vars": "put inputs into `workload`; state is written by `set_ctx` or a step's `vars`.",
        "steps": "list the steps under `workflow`.",
        "tasks": "list the steps under `workflow`; tasks to call by name stand under `workbook`.",
        "jobs": "list the steps under `workflow`.",
        **dict.fromkeys(("triggers", "schedule"), "write a document of kind Schedule or Hook."),
        **dict.fromkeys(("id", "namespace"), "write `metadata: {path: NAMESPACE/NAME}`."),
        "inputs": "types of inputs stand under `executor.spec.inputs`, defaults under `workload`.",
        **dict.fromkeys(("params", "parameters", "variables"), "write them under `workload`."),
        **dict.fromkeys(
            ("on_exit", "onExit", "on_failure", "onFailure"),
            "`executor.spec.on_failure` names the step that runs when an execution fails.",
        ),
        **dict.fromkeys(
            ("default_args", "defaults", "taskDefaults"),
            "what is to hold for all steps stands under `executor.spec`.",
        ),
        **dict.fromkeys(("labels", "tags"), "they stand under `metadata`."),
        "concurrency": "it stands under `executor.spec`.",
        "spec": "what a playbook asks of its runtime stands under `executor.spec`.",
    },
):
    """The whole document."""

    apiVersion: str | None = field(Text(), f"Always {API_VERSION}.", required=True)  # noqa: N815
    kind: str | None = field(Text(), "Always Playbook.", required=True)
    metadata: WrittenMetadata = field(WrittenMetadata, "What it is called.")
    name: str | None = field(CATALOG_NAME, "Belongs into `metadata`.")
    path: str | None = field(CATALOG_NAME, "Belongs into `metadata`.")
    keychain: tuple[WrittenSecret, ...] = field(
        ListOf(WrittenSecret.shape, "entries"), "Secrets it needs."
    )
    executor: WrittenExecutor = field(WrittenExecutor, "How and where to run.")
    workload: Node | None = field(VALUES, "Inputs with their defaults.")
    workflow: tuple[WrittenStep, ...] = field(
        ListOf(A_STEP, "steps", filled=True), "Steps.", required=True
    )
    workbook: WrittenWorkbook = field(WORKBOOK, "Named tasks to call from steps.")


# --- What it becomes -----------------------------------------------------------------------------


def build(building: Building, written: WrittenPlaybook) -> Net:
    """Build the net. Parts with the wrong shape have been reported and are left out."""
    # First, because a step that uses an entry needs what the entry reads.
    keychain = _keychain(building, written.keychain)
    building.secret_uses = list(building.uses)
    spec, metadata = written.executor.spec, written.metadata
    policy = spec.policy
    building.limits = bounds(Limits, policy.limits, policy.quotas).within(building.limits)
    building.kind_defaults = policy.placement.kind_defaults()
    building.tracing = policy.tracing
    if policy.results.reference_first:
        building.inline_max = REFERENCE_FIRST_BYTES
    outer = _outer_knobs(spec)
    default_timeout = building.amount(nodes.field(policy.defaults.timeouts, "step"), Where.STEP)
    blocks = workbook(building, written.workbook, outer)
    steps = tuple(step(building, one, outer, default_timeout) for one in written.workflow)
    built = _executor(building, written.executor)
    name, path = names_of(metadata.name or written.name, metadata.path or written.path)
    handler = _on_failure(building, spec, steps, path)
    if handler is not None:
        built = msgspec.structs.replace(built, on_failure=handler.name)
        if handler not in steps:
            steps = (*steps, handler)
    net = Net(
        name=name,
        path=path,
        version=metadata.version,
        description=metadata.description or "",
        labels=_labels(metadata),
        entry=_entry(nodes.text_of(spec.entry_step), [found.name for found in steps]),
        workload=_workload(building, written.workload, built.inputs),
        keychain=keychain,
        executor=built,
        steps=steps,
        workbook=blocks,
    )
    building.mark(
        net,
        written.place,
        entry=spec.place_of("entry_step"),
        workflow=written.node.keys.get("workflow"),
    )
    return net


def names_of(name: str | None, path: str | None) -> tuple[str, str]:
    """The name and path of a document; if one is missing, it follows from the other."""
    return name or (path or "").rpartition("/")[2], path or name or ""


def _outer_knobs(spec: _ExecutorSpec) -> Values:
    """The knobs that steps inherit from the executor: its own over its default timeouts and
    resources.
    """
    defaults = spec.policy.defaults
    found: Values = {}
    timeout = nodes.field(defaults.timeouts, "task")
    if timeout is not None:
        found["timeout"] = in_seconds(nodes.plain(timeout))
    if defaults.resources is not None:
        found["resources"] = nodes.plain(defaults.resources)
    return merge(found, knobs(spec))


def _on_failure(
    building: Building, spec: _ExecutorSpec, steps: tuple[Step, ...], path: str
) -> Step | None:
    """The step that runs when an execution fails; for a playbook, one is made that calls it."""
    wanted, place = spec.on_failure, spec.place_of("on_failure")
    if not wanted or place is None:
        return None
    names = [one.name for one in steps]
    for one in steps:
        if one.name == wanted:
            return one
    if hint := building.report.suggest(wanted, names):
        building.report.add(
            "unknown-step",
            f'`on_failure` names "{wanted}", which is neither a step nor the path of a'
            f" playbook.{hint}",
            place,
        )
        return None
    name = next(
        one
        for one in ("on_failure", *(f"on_failure_{n}" for n in range(2, 1000)))
        if one not in names
    )
    call = Task(
        name=f"{name}_task",
        kind=PLAYBOOK,
        config={"path": wanted},
        inputs={
            "error": "{{ args.error }}",
            "failed_step": "{{ args.failed_step }}",
            "execution_id": "{{ execution_id }}",
            "path": path,
        },
    )
    with building.inside(name=name):
        made = Step(
            name=name,
            description=f"Runs {wanted} when the execution fails.",
            tasks=(call,),
            tracing=tracing(building),
        )
    building.mark(call, place)
    building.mark(made, place)
    return made


def _workload(building: Building, written: Node | None, inputs: tuple[FormField, ...]) -> Values:
    """The defaults of the workload, including those of inputs."""
    found = building.values(written, Where.WORKLOAD)
    defaults = {
        one.name: one.default
        for one in inputs
        if (one.default is not None or not one.required) and one.name not in found
    }
    return {**found, **defaults}


def _labels(metadata: WrittenMetadata) -> Values:
    found: Values = nodes.plain(metadata.labels) if nodes.entries(metadata.labels) else {}
    for key in ("tags", "owner"):
        if (node := metadata.node_of(key)) is not None:
            found[key] = nodes.plain(node)
    return {key: found[key] for key in sorted(found)}


def _entry(written: str | None, names: list[str]) -> str:
    if written is not None:
        return written
    return "start" if "start" in names or not names else names[0]


def _keychain(building: Building, written: tuple[WrittenSecret, ...]) -> tuple[KeychainEntry, ...]:
    found = []
    for one in written:
        entry = KeychainEntry(
            name=one.name or "",
            kind=one.kind or "",
            config={
                key: building.value(value, Where.KEYCHAIN)
                for key, value in sorted(one.node.entries.items())
                if key not in ("name", "kind", "desc")
            },
        )
        building.mark(entry, one.place, name=one.place_of("name"))
        found.append(entry)
    return tuple(found)


def _executor(building: Building, written: WrittenExecutor) -> Executor:
    spec, policy = written.spec, written.spec.policy
    return Executor(
        kind=written.kind or "local",
        profile=written.profile,
        pool=policy.placement.pool_with(building, spec.pool),
        labels=policy.placement.labels,
        no_next_is_error=bool(spec.no_next_is_error),
        reference_first=bool(policy.results.reference_first),
        limits=building.limits,
        concurrency=_concurrency(building, spec.concurrency),
        max_running=spec.limits.max_running,
        priority=spec.priority or 0,
        inputs=_inputs(building, spec.inputs),
        result=result_schema(building, spec.result.schema),
        compensate_on=_compensate_on(policy),
        tracing=tracing(building),
    )


def _compensate_on(policy: _ExecutorPolicy) -> tuple[CompensatedEnd, ...]:
    """In one order and each once, so that equal playbooks are equal nets."""
    if policy.node_of("compensate_on") is None:
        return Executor().compensate_on
    return tuple(end for end in get_args(CompensatedEnd) if end in policy.compensate_on)


def _concurrency(building: Building, written: _Concurrency) -> Concurrency | None:
    key = building.value(written.key, Where.WORKLOAD)
    if key is None:
        return None
    return Concurrency(key=key, limit=written.limit or 1, on_limit=written.on_limit or "queue")


def _inputs(building: Building, node: Node | None) -> tuple[FormField, ...]:
    written = [(name, nodes.plain(one) or {}, one) for name, one in nodes.entries(node).items()]
    return form_fields(
        building,
        [({**one, "name": name}, at) for name, one, at in written if isinstance(one, dict)],
    )
