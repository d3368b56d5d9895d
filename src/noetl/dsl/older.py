"""Older forms: playbooks of earlier dialects, read as today's language.

`rewrite` walks a document from the outside in and replaces every older form that it meets. It runs
between reading and the shape check, so no later stage knows that older forms exist. Each change is
a warning (`older-form`, or `hint-ignored` for a key without effect); an older form beside today's
is an error (`conflicting-keys`). `noetl migrate` runs the same walk over the text.

Older forms of a single tool kind stand with that kind (`ToolShape.older`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from noetl.dsl import nodes
from noetl.dsl.loops import FRAME_HINTS
from noetl.dsl.nodes import Node, Scalar, Sequence
from noetl.dsl.playbook import WrittenMetadata
from noetl.dsl.policies import WrittenTaskSpec
from noetl.dsl.report import Report
from noetl.model.net import NOOP
from noetl.model.older_forms import Written, auth_by_name
from noetl.model.problems import Place
from noetl.model.spelling import did_you_mean, is_slip
from noetl.model.toolshape import ToolShape

Tools = Mapping[str, ToolShape]

OLDER = frozenset({"older-form", "hint-ignored", "guarded-name"})
"""Problem codes that `strict` turns into errors."""
HOOKS = ("before", "after", "finally")
OUTPUT_HINTS = ("store", "preview_max_bytes", "scope")
SPEC_KEYS = WrittenTaskSpec.declared.keys() | {"pool"}
"""The keys of a task's `spec`; other keys there may be config of the tool."""


class Context:
    """What rewriting a piece may depend on besides the piece itself."""

    def __init__(self, root: Written, tools: Tools) -> None:
        self._root = root
        self.tools = tools
        self.is_parallel = False
        """The step is a parallel loop without reducers, whose iterations may not write ctx."""

    @cached_property
    def ctx_keys(self) -> frozenset[str]:
        """The keys of ctx that the document writes anywhere."""
        keys: set[str] = set()
        stack: list[Any] = [self._root.plain("workflow"), self._root.plain("workbook")]
        while stack:
            match stack.pop():
                case dict() as mapping:
                    stack += mapping.values()
                    for named in (mapping.get("set_ctx"), mapping.get("reduce")):
                        keys |= set(named) if isinstance(named, dict) else set()
                    written = mapping.get("set")
                    for key, value in written.items() if isinstance(written, dict) else ():
                        root, _, rest = str(key).partition(".")
                        if root == "ctx" and rest:
                            keys.add(rest.partition(".")[0])
                        elif root == "ctx" and isinstance(value, dict):
                            keys |= set(value)
                case list() as items:
                    stack += items
        return frozenset(keys)


def rewrite(root: Written, tools: Tools) -> None:
    """Replace every older form of a document by today's."""
    context = Context(root, tools)
    if metadata := root.below("metadata", "`metadata`"):
        _metadata(metadata)
    for entry in root.each("keychain", "a keychain entry"):
        _keychain_entry(entry)
    if executor := root.below("executor", "the executor"):
        _executor(executor, context)
    _workbook(root, context)
    for step in root.each("workflow", "a step"):
        _step(step, context)


def _one_or_each(holder: Written, key: str, what: str) -> list[Written]:
    """The mapping under a key, or the mappings of the list under it."""
    single = holder.below(key, what)
    return [single] if single else holder.each(key, what)


# --- The document ------------------------------------------------------------------------------


def _metadata(metadata: Written) -> None:
    """Make unknown keys labels. A misspelt key stays where it is, so that the check refuses it."""
    for key in metadata.names():
        if key in WrittenMetadata.declared or is_slip(key, WrittenMetadata.declared):
            continue
        if labels := metadata.room("labels"):
            metadata.move(
                key,
                labels,
                key,
                f"it is kept as a label and means nothing here: write `labels.{key}`",
                "hint-ignored",
            )


def _keychain_entry(entry: Written) -> None:
    _refuse_machine_credentials(entry, "source")
    kind = entry.text("kind")
    if kind == "static" and entry.has("map"):
        entry.rename("map", "data")
    if kind != "oauth2":
        return
    if entry.has("endpoint"):
        entry.rename("endpoint", "token_url")
    if data := entry.below("data"):
        for key, new in (("scope", "scopes"), *((k, k) for k in _OAUTH_FIELDS)):
            if data.has(key):
                data.move(key, entry, new, f"write `{new}` of the entry itself")
        if data.has("grant_type"):
            _leave_out_default(data, "grant_type", "client_credentials")
        if not data.names():
            entry.discard("data")
    for key, value in (
        ("method", "POST"),
        ("auto_renew", True),
        ("grant_type", "client_credentials"),
    ):
        if entry.has(key):
            _leave_out_default(entry, key, value)
    headers = entry.plain("headers")
    if isinstance(headers, dict) and {str(key).lower(): headers[key] for key in headers} == _FORM:
        entry.leave_out("headers", "a token request is always a form")


def _refuse_machine_credentials(written: Written, key: str) -> None:
    """`source: adc` asks for the credentials of the machine that the worker runs on."""
    value = written.plain(key)
    source = value.get("source") if isinstance(value, dict) else value if key == "source" else None
    if isinstance(source, str) and source.lower() in _MACHINE_SOURCES:
        written.refuse(
            key,
            "bad-value",
            f"credentials of the machine itself (`source: {source}`) are not used. Store one with"
            " `noetl credential set NAME`, and write `auth: NAME` on the task, or"
            " `credential: NAME` in the keychain.",
        )


_MACHINE_SOURCES = ("adc", "application_default", "application_default_credentials")
_OAUTH_FIELDS = ("client_id", "client_secret", "scopes", "audience")
_FORM = {"content-type": "application/x-www-form-urlencoded"}


def _leave_out_default(written: Written, key: str, only: Any) -> None:
    """Take out a key that can have one value only, and refuse any other value."""
    value = written.plain(key)
    if (value.upper() if key == "method" and isinstance(value, str) else value) == only:
        written.leave_out(key, "it has no other value, so leave it out")
    else:
        shown = str(only).lower() if isinstance(only, bool) else only
        message = f"`{key}` of {written.what} can only be `{shown}` here."
        written.refuse(key, "bad-value", message)


def _executor(executor: Written, context: Context) -> None:
    for holder in (executor, executor.below("spec", "the executor's `spec`")):
        if holder is None:
            continue
        if holder.has("version"):
            holder.ignore("version", "the language has one version, which `apiVersion` names")
        if requires := holder.below("requires", "`requires`"):
            _requires(holder, requires, context)
        defaults = holder.below("defaults")
        if defaults is None or not defaults.has("timeout_s"):
            continue
        if timeouts := executor.room("spec", "policy", "defaults", "timeouts"):
            today = "write `spec.policy.defaults.timeouts.step`"
            defaults.move("timeout_s", timeouts, "step", today)
            if not defaults.names():
                holder.discard("defaults")


def _requires(holder: Written, requires: Written, context: Context) -> None:
    tools = requires.plain("tools")
    named = tools if isinstance(tools, list) else [] if tools is None else [tools]
    for kind in map(str, named):
        if kind not in context.tools:
            message = f'there is no tool kind "{kind[:60]}".{did_you_mean(kind, context.tools)}'
            holder.refuse("requires", "unknown-tool", message)
            return
    if set(requires.names()) <= {"tools", "features"}:
        holder.ignore("requires", "its tools exist, and features are not checked")


# --- Workbook and steps ------------------------------------------------------------------------


def _workbook(root: Written, context: Context) -> None:
    entries = root.each("workbook", "a workbook entry")
    if table := root.below("workbook", "the workbook"):
        inner = table.below("tasks")
        if inner and table.names() == ["tasks"] and not inner.has("kind"):
            table = inner
        for name in table.names():
            if entry := table.below(name, "a workbook entry"):
                entries.append(entry)
            else:
                _pipeline(table, name, context)
    for entry in entries:
        if loop := entry.below("loop", "a loop"):
            _loop(loop)
        if entry.has("kind"):
            entry.what = "a task"
            _task(entry, context)
        else:
            _pipeline(entry, "tool", context)


def _step(step: Written, context: Context) -> None:
    _spread_set(step, "set_ctx")
    loop = step.below("loop", "a loop")
    context.is_parallel = loop is not None and _is_parallel(loop)
    if loop:
        _loop(loop)
    tasks = _pipeline(step, "tool", context)
    _step_output(step, tasks)
    _retries(step, context)
    if sink := step.below("sink", "a sink"):
        _sink(sink, context)
    for rule in step.each("case", "a case rule"):
        _case_rule(rule, context)
    router = step.below("next", "a router")
    spec = router and router.below("spec", "a router's `spec`")
    if spec and spec.text("on_no_match") == "complete":
        spec.leave_out("on_no_match", "this is the default, so leave it out")


def _spread_set(written: Written, *keys: str) -> None:
    """`set_ctx: {x: …}` outside a rule is `set: {ctx.x: …}`."""
    prefixes = {key: f"{key.removeprefix('set_')}." for key in keys if written.has(key)}
    if prefixes:
        written.spread(prefixes, "set")


def _step_output(step: Written, tasks: list[Written]) -> None:
    """Move a step's `output` (older: `result`) to its last task."""
    if step.has("result") and isinstance(step.plain("result"), dict):
        step.rename("result", "output")
    if not step.has("output") or not tasks:
        return
    output = step.plain("output")
    if isinstance(output, dict) and output.keys() == {"schema"}:
        return  # the schema of a step's result may stand on the step
    step.move("output", tasks[-1], "output", "write it on the step's last task")
    _output(tasks[-1])


def _is_parallel(loop: Written) -> bool:
    spec = loop.plain("spec")
    spec = spec if isinstance(spec, dict) else {}
    policy = spec.get("policy")
    has_reducers = isinstance(policy, dict) and bool(policy.get("reduce"))
    modes = (loop.text("mode"), spec.get("mode"))
    return ("parallel" in modes or "cursor" in modes) and not has_reducers


def _loop(loop: Written) -> None:
    if cursor := loop.below("cursor", "a cursor"):
        auth_by_name(cursor)
    spec = loop.below("spec", "a loop's `spec`")
    if spec and (frame := spec.below("frame", "a cursor's `frame`")):
        for key in FRAME_HINTS:
            if frame.has(key):
                frame.ignore(key, "frames are bounded by rows and by their lease")
    for holder in (spec, loop):
        if holder and (policy := holder.below("policy", "a loop's policy")):
            _order_of_results(policy)
            if holder is loop and not policy.names():
                loop.discard("policy")


def _order_of_results(policy: Written) -> None:
    results = policy.below("results")
    if results and results.names() == ["preserve_order"]:
        if results.plain("preserve_order") is True:
            policy.leave_out("results", "results are always in the order of the collection")
        else:
            message = "`preserve_order` can only be `true`: results are always in order."
            results.refuse("preserve_order", "bad-value", message)


# --- Tasks -------------------------------------------------------------------------------------


def _pipeline(holder: Written, key: str, context: Context) -> list[Written]:
    """Rewrite the tasks under a key, and those inside sugar. Returns the former, in order."""
    tasks = []
    for entry in _one_or_each(holder, key, "a task"):
        keys = entry.names()
        body = entry.below(keys[0], "a task") if len(keys) == 1 else None
        if entry.has("kind"):
            tasks.append(entry)
        elif body and body.has("kind"):
            tasks.append(body)
        else:
            _sugar(entry, context)
    for task in tasks:
        _task(task, context)
    return tasks


def _sugar(entry: Written, context: Context) -> None:
    for branch in entry.each("choose", "a branch of `choose`"):
        for key in ("do", "else"):
            _pipeline(branch, key, context)
    for word in ("while", "until"):
        if body := entry.below(word):
            _pipeline(body, "do", context)


def _task(task: Written, context: Context) -> None:
    tool = context.tools.get(task.text("kind") or "")
    for key in ("auth", "credential"):
        _refuse_machine_credentials(task, key)
    if tool is not None:
        _config_in_spec(task, tool)
        _timeouts(task, tool)
        if tool.older is not None:
            tool.older(task)
    _spread_set(task, "set_ctx", "set_iter")
    _output(task)
    _policy_and_retries(task, context)


def _policy_and_retries(task: Written, context: Context) -> None:
    spec = task.below("spec", "a task's `spec`")
    if spec and (policy := spec.below("policy", "a task's policy")):
        for rule in policy.each("rules", "a policy rule"):
            _rule(rule)
        for hook in HOOKS:
            _pipeline(policy, hook, context)
    _retries(task, context)


def _config_in_spec(task: Written, tool: ToolShape) -> None:
    """Move config of the tool that stands in the task's `spec` to the task."""
    spec = task.below("spec", "a task's `spec`")
    if spec is None:
        return
    for key in spec.names():
        # `pool` of a `spec` is the name of a worker pool; a mapping is that of a SQL task.
        is_older = key in tool.deprecated and (key != "pool" or spec.below(key) is not None)
        if key in SPEC_KEYS and not is_older:
            continue
        if key in ("args", "input", "with") or tool.takes(key) or is_older:
            spec.move(key, task, key, f"write `{key}` on the task itself")


def _timeouts(task: Written, tool: ToolShape) -> None:
    for key in ("timeout", "timeout_seconds"):
        if not task.has(key) or tool.takes(key):
            continue
        if spec := task.room("spec"):
            task.move(key, spec, "timeout", "write `spec: {timeout: …}`")


def _output(task: Written) -> None:
    output = task.below("output", "an `output`")
    for holder, key in ((output, "output_select"), (output, "select"), (task, "output_select")):
        selected = holder.plain(key) if holder else None
        if holder is None or selected is None:
            continue
        if isinstance(selected, dict):
            holder.ignore(key, "only a list of paths selects fields")
            continue
        if isinstance(selected, list) and any(isinstance(path, str) for path in selected):
            written = [{"path": path} if isinstance(path, str) else path for path in selected]
            holder.put(key, written, "write each field as `{path: …}`")
        if key == "output_select" and holder is output:
            holder.rename(key, "select")
    if output is None:
        return
    for key in OUTPUT_HINTS:
        if output.has(key):
            output.ignore(key, "where a result is kept is the operator's choice")
    if not output.names():
        task.discard("output")


# --- Rules -------------------------------------------------------------------------------------


def _then_holder(rule: Written) -> Written:
    """The mapping in which a rule's `then` stands: the rule, or its `else`."""
    otherwise = rule.below("else", "an `else`")
    return otherwise if otherwise and otherwise.has("then") else rule


def _actions(rule: Written) -> list[Written]:
    """The mappings with a rule's actions: those under `then`, or an `else` without `then`."""
    otherwise = rule.below("else", "an `else`")
    if otherwise and otherwise.has("then"):
        return _one_or_each(otherwise, "then", "a rule's `then`")
    return [*_one_or_each(rule, "then", "a rule's `then`"), *([otherwise] if otherwise else [])]


def _rule(rule: Written) -> None:
    """A rule of any list: the form of its `else`, and the variables that it sets."""
    is_empty = "else" in rule.names() and not rule.has("else")
    if is_empty and rule.has("then") and (otherwise := rule.room("else")):
        rule.move("then", otherwise, "then", "write `else: {then: …}`")
    for actions in _actions(rule):
        _set_list(actions)


def _set_list(actions: Written) -> None:
    """`set: [{name, value}]` writes variables."""
    written = actions.plain("set")
    if not isinstance(written, list) or not written:
        return
    is_named = all(isinstance(one, dict) and set(one) == {"name", "value"} for one in written)
    if is_named and len({str(one["name"]) for one in written}) == len(written):
        actions.gather("set", "vars.", "write `set: {vars.x: …}`")


def _case_rule(rule: Written, context: Context) -> None:
    _rule(rule)
    holder = _then_holder(rule)
    _then_steps(holder)
    for actions in _actions(rule):
        for key in actions.names():
            action = actions.below(key)
            if action is None:
                continue
            if key == "sink":
                action.what = "a sink"
                _sink(action, context)
            elif key == "collect":
                _collect(action, context)
            elif key == "retry":
                action.what = "a retry"
                _paging_retry(actions, action)
                _retry(action)
            elif action.has("tool"):
                action.what = "a named task"
                if tool := action.below("tool", "a task"):
                    _task(tool, context)
                _spread_set(action, "set_ctx", "set_iter")
                _policy_and_retries(action, context)
    if chain := holder.below("retry", "a retry"):
        _retry(chain)


def _then_steps(holder: Written) -> None:
    """`then: [{step: x}]` names the next steps: it is `then: {next: …}`."""
    then = holder.plain("then")
    if isinstance(then, list) and then and all(_is_target(one) for one in then):
        holder.wrap("then", "next", "write `then: {next: …}`")


def _is_target(value: Any) -> bool:
    return isinstance(value, dict) and "step" in value and set(value) <= {"step", "args"}


def _paging_retry(actions: Written, retry: Written) -> None:
    """A `retry` that changes the call asks for another page: it is a `call`."""
    changed = [key for key in ("args", "input", "with", "params") if retry.has(key)]
    if not changed or not set(retry.names()) <= {*changed, "max_attempts", "attempts"}:
        return
    for key in ("attempts", "max_attempts"):
        if retry.has(key):
            retry.rename(key, "max_calls")
    actions.rename("retry", "call")


def _collect(collect: Written, context: Context) -> None:
    """`into: x` adds to `ctx.x` if ctx has that key."""
    into = collect.text("into")
    if into is not None and into in context.ctx_keys and not context.is_parallel:
        collect.put("into", f"ctx.{into}", f"ctx has that key: write `into: ctx.{into}`")


def _sink(sink: Written, context: Context) -> None:
    if tool := sink.below("tool", "a task"):
        if tool.text("kind") == "event_log":
            tool.put("kind", NOOP, "the log records what a sink is given: write `kind: noop`")
        _task(tool, context)


def _retries(holder: Written, context: Context) -> None:
    """`retry` of a step or task: one policy, or a list of them."""
    if retry := holder.below("retry", "a retry"):
        _retry(retry)
    for policy in holder.each("retry", "a retry policy"):
        if then := policy.below("then", "a retry policy's `then`"):
            _retry(then)
            if collect := then.below("collect", "a `collect`"):
                _collect(collect, context)
            if sink := then.below("sink", "a sink"):
                _sink(sink, context)


def _retry(retry: Written) -> None:
    if retry.has("retry_on"):
        retry.rename("retry_on", "on")
    if retry.has("retry_on_status"):
        statuses = retry.plain("retry_on_status")
        listed = statuses if isinstance(statuses, list) else [statuses]
        if retry.has("when"):
            retry.refuse(
                "retry_on_status",
                "conflicting-keys",
                "`when` and `retry_on_status` both say which outcomes to retry. Keep one of them.",
            )
        else:
            retry.put(
                "retry_on_status",
                f"{{{{ error.status in {listed!r} }}}}",
                "write a condition: `when: …`",
            )
            retry.rename("retry_on_status", "when")
    backoff = retry.plain("backoff")
    if isinstance(backoff, int | float) and not isinstance(backoff, bool):
        retry.rename("backoff", "delay")
    if retry.has("backoff_seconds"):
        retry.rename("backoff_seconds", "delay")


# --- The tree of the compiler ------------------------------------------------------------------


class NodeWritten(Written):
    """A mapping in the tree that the compiler has read."""

    is_text = False

    def __init__(self, node: nodes.Mapping, what: str, report: Report, root: Node) -> None:
        self._node = node
        self._report = report
        self._root = root
        self.what = what

    def names(self) -> list[str]:
        return list(self._node.entries)

    def has(self, key: str) -> bool:
        return not nodes.is_null(self._node.entries.get(key))

    def plain(self, key: str) -> Any:
        return nodes.plain(self._node.entries.get(key))

    def text(self, key: str) -> str | None:
        return nodes.text_of(self._node.entries.get(key))

    def below(self, key: str, what: str = "") -> NodeWritten | None:
        return self._of(self._node.entries.get(key), what or f"`{key}` of {self.what}")

    def each(self, key: str, what: str = "") -> list[Written]:
        found = self._node.entries.get(key)
        items = found.items if isinstance(found, Sequence) else ()
        made = (self._of(item, what or f"an entry of `{key}`") for item in items)
        return [one for one in made if one is not None]

    def _of(self, node: Node | None, what: str) -> NodeWritten | None:
        if not isinstance(node, nodes.Mapping):
            return None
        return NodeWritten(node, what, self._report, self._root)

    def room(self, *path: str) -> NodeWritten | None:
        node = self._node
        for key in path:
            value = node.entries.get(key)
            if nodes.is_null(value):
                place = value.place if value is not None else node.place
                value = nodes.Mapping(place)
                node.put(key, node.keys.get(key, place), value)
            if not isinstance(value, nodes.Mapping):
                return None
            node = value
        return NodeWritten(node, self.what, self._report, self._root)

    def move(self, key: str, to: Written, new: str, today: str, code: str = "older-form") -> None:
        assert isinstance(to, NodeWritten)
        if new in to._node.entries and (to._node is not self._node or new != key):
            self._conflict(key, new)
            return
        if code == "older-form":
            self.note(key, today)
        else:
            self._add_problem(code, key, f"`{key}` of {self.what}: {today}.")
        place, value = self._node.keys[key], self._node.entries[key]
        if to._node is self._node:
            self._replace_key(key, new)
            return
        self.discard(key)
        to._node.put(new, place, value)

    def _conflict(self, key: str, new: str) -> None:
        self._report.add(
            "conflicting-keys",
            f"`{key}` of {self.what} is an older form of `{new}`, which is written, too."
            " Keep one of them.",
            self._node.keys[key],
        )
        self.discard(key)

    def _replace_key(self, key: str, new: str) -> None:
        """Rename a key in place: the order of actions has a meaning."""
        node = self._node
        pairs = [(new if k == key else k, node.keys[k], v) for k, v in node.entries.items()]
        node.entries, node.keys = {}, {}
        for name, place, value in pairs:
            node.put(name, place, value)

    def discard(self, key: str) -> None:
        del self._node.entries[key], self._node.keys[key]

    def spread(self, prefixes: Mapping[str, str], to: str) -> None:
        if to in self._node.entries:
            for key in prefixes:
                self._conflict(key, to)
            return
        joined = nodes.Mapping(self._node.entries[next(iter(prefixes))].place)
        for key, prefix in prefixes.items():
            source = self._node.entries[key]
            if not isinstance(source, nodes.Mapping):
                self._report.add(
                    "wrong-type", f"`{key}` of {self.what} must be a mapping.", source.place
                )
                self.discard(key)
                continue
            self.note(key, f"write `{to}: {{{prefix}x: …}}`")
            for name, value in source.entries.items():
                joined.put(f"{prefix}{name}", source.keys[name], value)
            place = self._node.keys[key]
            self.discard(key)
            self._node.put(to, place, joined)

    def gather(self, key: str, prefix: str, today: str) -> None:
        source = self._node.entries[key]
        assert isinstance(source, Sequence)
        self.note(key, today)
        joined = nodes.Mapping(source.place)
        for item in source.items:
            assert isinstance(item, nodes.Mapping)
            name = nodes.plain(item.entries["name"])
            joined.put(f"{prefix}{name}", item.keys["name"], item.entries["value"])
        self._node.entries[key] = joined

    def wrap(self, key: str, inner: str, today: str) -> None:
        self.note(key, today)
        value = self._node.entries[key]
        holder = nodes.Mapping(value.place)
        holder.put(inner, value.place, value)
        self._node.entries[key] = holder

    def put(self, key: str, value: Any, today: str) -> None:
        self.note(key, today)
        place = self._node.entries[key].place
        self._node.entries[key] = _node_of(value, place)

    def ignore(self, key: str, why: str) -> None:
        self._add_problem(
            "hint-ignored", key, f"`{key}` of {self.what} is accepted without effect: {why}."
        )
        self.discard(key)

    def note(self, key: str, today: str) -> None:
        self._add_problem(
            "older-form",
            key,
            f"`{key}` of {self.what} is an older form: {today}. `noetl migrate` rewrites it.",
        )

    def refuse(self, key: str, code: str, message: str) -> None:
        self._add_problem(code, key, message)
        self.discard(key)

    def _add_problem(self, code: str, key: str, message: str) -> None:
        # Problems name paths of the text as written, before pieces of it move.
        self._report.remember_paths(self._root)
        self._report.add(code, message, self._node.keys[key])


def _node_of(value: Any, place: Place) -> Node:
    """Plain data as nodes, all at one place."""
    match value:
        case dict():
            mapping = nodes.Mapping(place)
            for key, part in value.items():
                mapping.put(key, place, _node_of(part, place))
            return mapping
        case list():
            return Sequence(place, [_node_of(part, place) for part in value])
        case _:
            return Scalar(place, value, str(value), isinstance(value, str))


def read_older_forms(root: nodes.Mapping, report: Report, tools: Tools) -> None:
    """Replace the older forms in a document that was just read."""
    rewrite(NodeWritten(root, "a playbook", report, root), tools)
