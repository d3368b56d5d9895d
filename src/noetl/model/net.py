"""The net: what a playbook means, whichever way it was written.

A net is immutable, self-contained and addressed by the digest of its canonical bytes. Steps are
the transitions of a Petri net: tokens arrive, admission and join decide, the body runs on a
worker, rules and router place new tokens.

Any value typed `Value` is plain data in which texts may be templates; they are compiled when
the net is first used, never here. `Amount` is a number, or a template that will yield one.
Nothing in a net says where in the text it came from: two playbooks that differ in formatting or
key order are the same net.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any, Literal

import msgspec

Value = Any
Condition = bool | str
Amount = int | float | str
Values = dict[str, Value]

NOOP = "noop"
PLAYBOOK = "playbook"
WORKBOOK = "workbook"
"""Tool kinds with a meaning in the language itself: a task that calls nothing, a child execution,
an entry of the workbook. Every other kind declares its peculiarities in `tools/KIND`; no other
module knows its name."""
OWN_KINDS = frozenset({NOOP, PLAYBOOK, WORKBOOK})


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of everything in a net.

    Defaults are written out in the bytes: msgspec would leave them out by identity, not by
    value, and a written default must give the same bytes as an unwritten one.
    """


# --- Words that a playbook chooses from ---------------------------------------------------------
# Written here and nowhere else: the shapes of `dsl` offer them, and the builders accept them.

DirectiveKind = Literal["continue", "retry", "jump", "break", "fail"]
"""Where a pipeline goes; a rule of a task's policy ends with one of these actions."""
Backoff = Literal["none", "fixed", "linear", "exponential"]
CollectMode = Literal["append", "extend", "replace", "merge"]
NextPolicy = Literal["end_step", "break_chain", "defer"]
MatchMode = Literal["exclusive", "inclusive"]
"""The first that holds, or all that hold."""
RuleOrder = Literal["source", "priority"]
FailureMode = Literal["fail_fast", "best_effort"]
OnStepError = Literal["fail", "ignore", "retry"]
OnIterationError = Literal["fail", "continue"]
Locality = Literal["local", "distributed"]
FrameProcess = Literal["row", "frame"]
Reducer = Literal["append", "extend", "sum", "min", "max", "merge", "count", "last", "first"]
OnLimit = Literal["queue", "cancel_new", "cancel_running", "fail"]
CompensatedEnd = Literal["failure", "cancel"]


# --- What rules may do -------------------------------------------------------------------------


class Action(Record, frozen=True, kw_only=True, tag_field="do"):
    """Base of the actions. Rules hold them in the order they take effect."""


class Continue(Action, frozen=True, kw_only=True, tag="continue"):
    """Continue with the next task."""


class Break(Action, frozen=True, kw_only=True, tag="break"):
    """End the pipeline (in a loop: the iteration) as a success."""


class Jump(Action, frozen=True, kw_only=True, tag="jump"):
    """Continue with the task of that name."""

    to: str


class Fail(Action, frozen=True, kw_only=True, tag="fail"):
    """End the pipeline as a failure."""

    error: Value = None


class Retry(Action, frozen=True, kw_only=True, tag="retry"):
    """Repeat the call after a wait. When the attempts are used up, the rule no longer matches."""

    attempts: Amount = 3
    """Attempts in total, including the first."""
    backoff: Backoff = "fixed"
    delay: Amount = 0
    max_delay: Amount | None = None
    multiplier: Amount = 2
    jitter: bool = False
    overrides: Values = {}
    """Config to change for the next call: a new page rather than another attempt."""


class Call(Action, frozen=True, kw_only=True, tag="call"):
    """Invoke the step's tool again with some of its config changed."""

    overrides: Values = {}
    max_calls: Amount | None = None
    """After this many calls the rule no longer holds."""


class Collect(Action, frozen=True, kw_only=True, tag="collect"):
    """Add a part of the result to an accumulator."""

    source: str
    into: str
    mode: CollectMode = "append"


class Patch(Action, frozen=True, kw_only=True, tag="set"):
    """Write values: into the execution's ctx, the iteration's iter, or the step run's own names."""

    ctx: Values = {}
    iter: Values = {}
    local: Values = {}
    vars: Values = {}


class Result(Action, frozen=True, kw_only=True, tag="result"):
    """Set the result of the step."""

    value: Value


class Run(Action, frozen=True, kw_only=True, tag="run"):
    """Run a task for its effect. A sink is a run whose success is reported as `sink.*`."""

    task: Task
    sink: bool = False


class Route(Action, frozen=True, kw_only=True, tag="next"):
    """Ask for tokens on other steps."""

    targets: tuple[Target, ...]
    policy: NextPolicy | None = None
    priority: int | None = None
    delay: Amount | None = None


class Skip(Action, frozen=True, kw_only=True, tag="skip", omit_defaults=True):
    """End the step as skipped.

    A reason that is not written is not in the bytes: older nets, which knew none, keep their
    digests.
    """

    reason: str | None = None


AnyAction = (
    Continue | Break | Jump | Fail | Retry | Call | Collect | Patch | Result | Run | Route | Skip
)


class Target(Record, frozen=True, kw_only=True):
    """Where a token goes, and what it carries."""

    step: str
    """A step name, or a template that yields one."""
    args: Values = {}


class Rule(Record, frozen=True, kw_only=True):
    """When this holds, do these. A rule without condition is the `else`."""

    label: str
    when: Condition | None = None
    actions: tuple[AnyAction, ...] = ()


CALL_ENDS = frozenset(
    {"call.done", "call.error", "task.done", "tool.processed", "ToolCompleted", "ToolErrored"}
)
STEP_ENDS = frozenset(
    {"step.done", "step.failed", "step.exit", "step.finished", "StepFinished", "StepFailed"}
)
LOOP_ENDS = frozenset({"loop.done", "loop.failed", "loop.finished", "LoopDone", "LoopFinished"})
STEP_STARTS = frozenset({"step.enter", "step.started", "StepStarted"})
"""The names of what happens to a step without the world, as rules and guards write them."""


class EventRule(Rule, frozen=True, kw_only=True):
    """A rule of `case`: considered when one of its events happens to the step."""

    events: tuple[str, ...] | None = None
    """The `event.name`s for which the condition can hold; None if that is unknown."""
    priority: int = 0
    retry: Retry | None = None
    """Restart the whole chain of actions when one of its tasks fails."""


# --- What runs ---------------------------------------------------------------------------------


class Select(Record, frozen=True, kw_only=True):
    """A field of a large result that stays readable beside its reference."""

    path: str
    name: str


class ResultSchema(Record, frozen=True, kw_only=True):
    """The schema of a result. It is part of the net, so an execution keeps the version that its
    playbook was compiled with.
    """

    schema: Value
    name: str = ""
    """`path@version` of the document it comes from; empty if it was written in the playbook."""

    @property
    def label(self) -> str:
        """Its name: in the catalog, or its own title."""
        title = self.schema.get("title") if isinstance(self.schema, dict) else None
        return self.name or (title if isinstance(title, str) else "")


class Poll(Record, frozen=True, kw_only=True):
    """Call again until a predicate holds. Not a failure retry."""

    until: Condition
    interval: Amount = 5
    max_attempts: Amount | None = None
    deadline: Amount | None = None


class Task(Record, frozen=True, kw_only=True):
    """One tool call with everything that decides what happens around it."""

    name: str
    kind: str
    config: Values = {}
    """The tool's own fields, in their main spelling."""
    inputs: Values = {}
    rules: tuple[Rule, ...] = ()
    """The task policy: the first rule that holds decides. Empty: ok continues, error fails."""
    retries: tuple[Rule, ...] = ()
    """Rules from `retry`, tried before `rules`: the first that holds repeats the call."""
    poll: Poll | None = None
    before: tuple[Task, ...] = ()
    after: tuple[Task, ...] = ()
    finally_: tuple[Task, ...] = msgspec.field(default=(), name="finally")
    patch: Patch | None = None
    """Written after success."""
    select: tuple[Select, ...] = ()
    schema: ResultSchema | None = None
    timeout: Value = None
    """Seconds, or `{connect, read, total}`."""
    max_jumps: Amount = 100_000
    spec: Values = {}
    """Runtime settings for the tool, all layers merged."""
    origin: str = ""
    """For a task made from shorthand: the word and its label, such as `while while_1`."""


class Range(Record, frozen=True, kw_only=True):
    """A counted loop; `stop` is not included."""

    start: Amount = 0
    stop: Amount
    step: Amount = 1


FRAME_ROWS = "__frame_max_rows"
"""Another name of `max_rows` in a claim statement: a parameter of it, and a name in templates."""


class Cursor(Record, frozen=True, kw_only=True):
    """A loop fed by a claim statement that is run until it yields no row."""

    kind: str
    auth: Value = None
    database: Value = None
    """The file, where the kind has one."""
    claim: str
    params: Value = None
    max_rows: Amount = 1
    process: FrameProcess = "row"
    row_concurrency: Amount = 1
    lease_seconds: Amount = 60
    max_attempts: Amount = 3
    timeout: Value = None
    """Of one run of the statement, as that of a task."""


class Loop(Record, frozen=True, kw_only=True):
    """Run the body once per element."""

    iterator: str
    items: Value = None
    """A list, a mapping, or a template that yields one; None when range or cursor is set."""
    range: Range | None = None
    cursor: Cursor | None = None
    mode: Literal["sequential", "parallel"] = "sequential"
    max_in_flight: Amount | None = None
    batch_size: Amount | None = None
    on_error: OnIterationError = "fail"
    placement: Locality = "distributed"
    reduce: dict[str, Reducer] = {}
    partition: Value = None
    """The key of an iteration: those with the same one follow one another."""
    max_pending: int | None = None
    """A cursor claims nothing while this many of its elements have not ended."""


class Block(Record, frozen=True, kw_only=True):
    """A named entry of the workbook: a pipeline, perhaps looped, that tasks call by name."""

    name: str
    description: str = ""
    inputs: Values = {}
    loop: Loop | None = None
    tasks: tuple[Task, ...] = ()


# --- Steps -------------------------------------------------------------------------------------


class Admit(Record, frozen=True, kw_only=True):
    """An admission rule; without condition it is the `else`."""

    allow: bool
    when: Condition | None = None
    args: Values = {}
    """What it adds to the token's args if it allows."""


class Join(Record, frozen=True, kw_only=True):
    """When tokens that wait at a step become a run."""

    kind: Literal["auto", "each", "all", "any", "count"] = "auto"
    count: int | None = None


class Arc(Record, frozen=True, kw_only=True):
    """An arc from one step to another."""

    step: str
    when: Condition | None = None
    args: Values = {}
    patch: Patch | None = None
    delay: Amount | None = None
    priority: int = 0
    on_failure: bool = False
    """The guard reads `event` or `error`, so a failed step may take this arc."""
    dedupe: Value = None
    """The key of a token: the arc carries one token of each key."""
    partition: Value = None
    """The key of a token: runs of tokens with the same key run one after another."""


class Router(Record, frozen=True, kw_only=True):
    """Exclusive: the first arc whose guard holds. Inclusive: every such arc."""

    mode: MatchMode = "exclusive"
    arcs: tuple[Arc, ...] = ()
    quiet: bool = False
    """No warning if no arc holds (`on_no_match: quiet`)."""


class CaseSettings(Record, frozen=True, kw_only=True):
    """How the event rules of a step are read."""

    mode: MatchMode = "exclusive"
    order: RuleOrder = "source"
    next_policy: NextPolicy = "end_step"
    wait: bool = False
    """`eval_mode: on_event`: the step waits for external events, holding no worker."""
    independent: bool = False
    """Mapping-form rules: rules for different events do not exclude each other."""


class Timer(Record, frozen=True, kw_only=True):
    """Fires `timer.fired` once, some seconds after the step started or at a moment."""

    id: str
    after: Amount | None = None
    at: str | None = None


FieldType = Literal[
    "text",
    "number",
    "integer",
    "boolean",
    "choice",
    "date",
    "datetime",
    "list",
    "object",
    "json",
    "secret",
    "file",
]


class FormField(Record, frozen=True, kw_only=True):
    """One question put to a person, or one typed input of a playbook."""

    name: str
    type: FieldType = "text"
    label: str = ""
    help: str = ""
    required: bool = True
    default: Value = None
    options: Value = None
    min: Value = None
    """The least number or date; of texts and lists, the least length."""
    max: Value = None
    pattern: str | None = None
    """A regular expression (RE2) that the whole text must match."""


class Needs(Record, frozen=True, kw_only=True):
    """What the body of a step reads, so that a command carries no more.

    Each list names first path elements; `"*"` stands for everything. Bare names may turn out to be
    in args, ctx, iter or workload.
    """

    ctx: tuple[str, ...] = ()
    workload: tuple[str, ...] = ()
    vars: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()
    keychain: tuple[str, ...] = ()


class Quotas(Record, frozen=True, kw_only=True):
    """How much calls may use together; None: no limit."""

    max_calls: int | None = None
    max_bytes: int | None = None
    """Of results."""
    max_seconds: float | None = None
    """The total duration of calls."""


class Tracing(Record, frozen=True, kw_only=True):
    """How executions and their step runs are traced, if tracing is on."""

    sample: float | None = None
    """The fraction of executions to trace; None: as the environment says."""
    attributes: Values = {}


class Step(Record, frozen=True, kw_only=True):
    """A transition of the net."""

    name: str
    description: str = ""
    args: Values = {}
    admit: tuple[Admit, ...] = ()
    admit_mode: MatchMode = "exclusive"
    """The first rule that holds decides, or all that hold, of which each may deny."""
    join: Join = Join()
    loop: Loop | None = None
    tasks: tuple[Task, ...] = ()
    sink: Task | None = None
    """Runs after each successful pass of the pipeline; its result is not the step's."""
    rules: tuple[EventRule, ...] = ()
    case: CaseSettings = CaseSettings()
    timers: tuple[Timer, ...] = ()
    form: tuple[FormField, ...] = ()
    form_role: str = ""
    """The role that may answer it; admins always may."""
    match: Condition | None = None
    """Which external events concern this step."""
    router: Router = Router()
    vars: Values = {}
    patch: Patch | None = None
    timeout: Amount | None = None
    deadline: Amount | None = None
    failure_mode: FailureMode = "fail_fast"
    on_error: OnStepError = "fail"
    compensate: str | None = None
    emit: tuple[str, ...] = ()
    pool: str | None = None
    labels: dict[str, str] = {}
    """Labels that its workers must have, in addition to those of the executor."""
    quotas: Quotas = Quotas()
    """Of one run."""
    tracing: Tracing = Tracing()
    """Merged with the settings of the executor."""
    needs: Needs = Needs()


# --- The whole ---------------------------------------------------------------------------------


class KeychainEntry(Record, frozen=True, kw_only=True):
    """A secret the playbook needs, resolved on the worker at the moment of use."""

    name: str
    kind: str
    config: Values = {}


class Limits(Record, frozen=True, kw_only=True):
    """Limits for everything inside, combined from outer to inner by minimum; None: no limit."""

    max_payload_bytes: int | None = None
    max_attempts: int | None = None
    max_in_flight: int | None = None
    max_jumps: int | None = None
    timeout: float | None = None
    max_calls: int | None = None
    max_bytes: int | None = None
    max_seconds: float | None = None
    """The last three are quotas of one execution."""

    def within(self, outer: Limits) -> Limits:
        """The tighter of both limits: an inner one can tighten, never weaken."""
        tightest = {}
        for name in self.__struct_fields__:
            bounds = [
                bound for bound in (getattr(outer, name), getattr(self, name)) if bound is not None
            ]
            tightest[name] = min(bounds) if bounds else None
        return Limits(**tightest)

    @property
    def quotas(self) -> Quotas:
        return Quotas(
            max_calls=self.max_calls, max_bytes=self.max_bytes, max_seconds=self.max_seconds
        )


class Concurrency(Record, frozen=True, kw_only=True):
    """How many executions with the same key may run at the same time, of any playbook."""

    key: Value
    limit: int = 1
    on_limit: OnLimit = "queue"


class Executor(Record, frozen=True, kw_only=True):
    """How and where the playbook wants to run."""

    kind: Locality = "local"
    profile: str | None = None
    """A name for people."""
    pool: str | None = None
    labels: dict[str, str] = {}
    """Labels that workers must have."""
    no_next_is_error: bool = False
    reference_first: bool = False
    """As written; its effects are in the spec of each task."""
    limits: Limits = Limits()
    concurrency: Concurrency | None = None
    max_running: int | None = None
    """How many executions of the playbook may run at the same time."""
    on_failure: str | None = None
    """The step that runs once when an execution fails."""
    priority: int = 0
    """Of the commands in a pool, and of executions that wait for their turn, the highest is
    first.
    """
    inputs: tuple[FormField, ...] = ()
    """The inputs: types and bounds of the workload."""
    result: ResultSchema | None = None
    """The schema of the result of an execution."""
    compensate_on: tuple[CompensatedEnd, ...] = ("failure",)
    """After which endings the completed steps are undone."""
    tracing: Tracing = Tracing()


class Net(Record, frozen=True, kw_only=True):
    """A playbook, compiled."""

    name: str
    path: str
    version: str | None = None
    description: str = ""
    labels: Values = {}
    entry: str
    workload: Values = {}
    keychain: tuple[KeychainEntry, ...] = ()
    executor: Executor = Executor()
    steps: tuple[Step, ...]
    workbook: tuple[Block, ...] = ()


_encoder = msgspec.json.Encoder(order="sorted")


@cache
def _decoder() -> msgspec.json.Decoder[Net]:
    # Made when the first net is read: a process that compiles its playbook needs none.
    return msgspec.json.Decoder(Net)


def encode(net: Net) -> bytes:
    """The canonical bytes: the same for every formatting and key order of the same playbook."""
    return _encoder.encode(net)


def decode(data: bytes) -> Net:
    """The net whose canonical bytes these are."""
    return _decoder().decode(data)


def digest(net: Net) -> str:
    """The digest, which identifies this net everywhere."""
    return hashlib.sha256(encode(net)).hexdigest()
