"""Older forms: what people wrote before, read as today's language.

`rewrite` walks a document from the outside in and puts every older form it meets into today's
words. It runs between reading and the shape check, so nothing behind it knows that older forms
exist. Each change is a warning (`older-form`, or `hint-ignored` for a key without effect), and
writing both the older and today's form is `conflicting-keys`. `noetl migrate` runs the same walk
over the text.

Forms of a single tool kind stand with that kind (`ToolShape.older`).
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
"""What `strict` refuses."""
HOOKS = ("before", "after", "finally")
OUTPUT_HINTS = ("store", "preview_max_bytes", "scope")
SPEC_KEYS = WrittenTaskSpec.declared.keys() | {"pool"}
"""What a task's `spec` has of its own; other keys there may be config of the tool."""


class Look:
    """What forms may look at beside the piece they are about."""

    def __init__(self, root: Written, tools: Tools) -> None:
        self._root = root
        self.tools = tools
        self.is_parallel = False
        """The step is a parallel loop without reducers, whose iterations may not write ctx."""

    @cached_property
    def ctx_keys(self) -> frozenset[str]:
        """The keys of ctx that something in the document writes."""
        found: set[str] = set()
        stack: list[Any] = [self._root.plain("workflow"), self._root.plain("workbook")]
        while stack:
            match stack.pop():
                case dict() as mapping:
                    stack += mapping.values()
                    for named in (mapping.get("set_ctx"), mapping.get("reduce")):
                        found |= set(named) if isinstance(named, dict) else set()
                    written = mapping.get("set")
                    for key, value in written.items() if isinstance(written, dict) else ():
                        root, _, rest = str(key).partition(".")
                        if root == "ctx" and rest:
                            found.add(rest.partition(".")[0])
                        elif root == "ctx" and isinstance(value, dict):
                            found |= set(value)
                case list() as items:
                    stack += items
        return frozenset(found)


def rewrite(root: Written, tools: Tools) -> None:
    """Put every older form of a document into today's words."""
    look = Look(root, tools)
    _metadata(root.below("metadata", "`metadata`"))
    for entry in root.each("keychain", "a keychain entry"):
        _keychain_entry(entry)
    executor = root.below("executor", "the executor")
    if executor is not None:
        _executor(executor, look)
    _workbook(root, look)
    for step in root.each("workflow", "a step"):
        _step(step, look)


# --- The document ------------------------------------------------------------------------------


def _metadata(metadata: Written | None) -> None:
    """Further keys are labels; a near miss of a known key stays where it is, to be refused."""
    if metadata is None:
        return
    for key in metadata.names():
        if key in WrittenMetadata.declared or is_slip(key, WrittenMetadata.declared):
            continue
        labels = metadata.room("labels")
        if labels is not None:
            metadata.move(
                key,
                labels,
                key,
                f"it is kept as a label and means nothing here: write `labels.{key}`",
                "hint-ignored",
            )


def _keychain_entry(entry: Written) -> None:
    _ambient(entry, "source")
    kind = entry.text("kind")
    if kind == "static" and entry.has("map"):
        entry.rename("map", "data")
    if kind != "oauth2":
        return
    if entry.has("endpoint"):
        entry.rename("endpoint", "token_url")
    data = entry.below("data")
    if data is not None:
        for key, new in (("scope", "scopes"), *((k, k) for k in _OAUTH_FIELDS)):
            if data.has(key):
                data.move(key, entry, new, f"write `{new}` of the entry itself")
        if data.has("grant_type"):
            _says_nothing_new(data, "grant_type", "client_credentials")
        if not data.names():
            entry.discard("data")
    for key, value in (
        ("method", "POST"),
        ("auto_renew", True),
        ("grant_type", "client_credentials"),
    ):
        if entry.has(key):
            _says_nothing_new(entry, key, value)
    headers = entry.plain("headers")
    if isinstance(headers, dict) and _is_form(headers):
        entry.leave_out("headers", "a token request is always a form")


def _ambient(written: Written, key: str) -> None:
    """`source: adc`: the credential that the machine itself has."""
    found = written.plain(key)
    source = found.get("source") if isinstance(found, dict) else found if key == "source" else None
    if isinstance(source, str) and source.lower() in _AMBIENT:
        written.refuse(
            key,
            "bad-value",
            f"credentials of the machine itself (`source: {source}`) are not used. Store one with"
            " `noetl credential set NAME`, and write `auth: NAME` on the task, or"
            " `credential: NAME` in the keychain.",
        )


_AMBIENT = ("adc", "application_default", "application_default_credentials")
_OAUTH_FIELDS = ("client_id", "client_secret", "scopes", "audience")


def _is_form(headers: dict[str, Any]) -> bool:
    return {str(key).lower(): value for key, value in headers.items()} == {
        "content-type": "application/x-www-form-urlencoded"
    }


def _says_nothing_new(written: Written, key: str, value: Any) -> None:
    found = written.plain(key)
    if (found.upper() if key == "method" and isinstance(found, str) else found) == value:
        written.leave_out(key, "that is how it is done anyway")
    else:
        written.refuse(
            key, "bad-value", f"`{key}` of {written.what} can only be `{_yaml(value)}` here."
        )


def _yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _executor(executor: Written, look: Look) -> None:
    for holder in (executor, executor.below("spec", "the executor's `spec`")):
        if holder is None:
            continue
        if holder.has("version"):
            holder.ignore("version", "the language has one version, which `apiVersion` names")
        requires = holder.below("requires", "`requires`")
        if requires is not None:
            _requires(holder, requires, look)
        defaults = holder.below("defaults")
        if defaults is None or not defaults.has("timeout_s"):
            continue
        timeouts = executor.room("spec", "policy", "defaults", "timeouts")
        if timeouts is not None:
            today = "write `spec.policy.defaults.timeouts.step`"
            defaults.move("timeout_s", timeouts, "step", today)
            if not defaults.names():
                holder.discard("defaults")


def _requires(holder: Written, requires: Written, look: Look) -> None:
    for kind in requires.plain("tools") or ():
        if str(kind) not in look.tools:
            message = f'there is no tool kind "{str(kind)[:60]}".'
            requires.refuse("tools", "unknown-tool", message + did_you_mean(str(kind), look.tools))
            return
    if set(requires.names()) <= {"tools", "features"}:
        holder.ignore("requires", "its tools exist, and features are not looked at")


# --- Workbook and steps ------------------------------------------------------------------------


def _workbook(root: Written, look: Look) -> None:
    table = root.below("workbook", "the workbook")
    inner = table.below("tasks") if table is not None else None
    if inner is not None and table is not None and table.names() == ["tasks"] and not _kind(inner):
        table = inner
    blocks = root.each("workbook", "a workbook entry")
    for name in table.names() if table is not None else ():
        assert table is not None
        block = table.below(name, "a workbook entry")
        if block is None:
            _pipeline(table, name, look)
        else:
            blocks.append(block)
    for block in blocks:
        loop = block.below("loop", "a loop")
        if loop is not None:
            _loop(loop)
        if _kind(block):
            block.what = "a task"
            _task(block, look)
        else:
            _pipeline(block, "tool", look)


def _kind(written: Written) -> bool:
    return written.has("kind")


def _step(step: Written, look: Look) -> None:
    _spread_set(step, "set_ctx")
    loop = step.below("loop", "a loop")
    look.is_parallel = loop is not None and _is_parallel(loop)
    if loop is not None:
        _loop(loop)
    tasks = _pipeline(step, "tool", look)
    _step_output(step, tasks)
    retry = step.below("retry", "a retry")
    if retry is not None:
        _retry(retry)
    _retry_list(step, look)
    sink = step.below("sink", "a sink")
    if sink is not None:
        _sink(sink, look)
    for rule in step.each("case", "a case rule"):
        _case_rule(rule, look)
    router = step.below("next", "a router")
    spec = router.below("spec", "a router's `spec`") if router is not None else None
    if spec is not None and spec.text("on_no_match") == "complete":
        spec.leave_out("on_no_match", "that is what happens anyway")


def _spread_set(written: Written, *keys: str) -> None:
    """`set_ctx: {x: …}` outside a rule is `set: {ctx.x: …}`."""
    prefixes = {key: f"{key.removeprefix('set_')}." for key in keys if written.has(key)}
    if prefixes:
        written.spread(prefixes, "set")


def _step_output(step: Written, tasks: list[Written]) -> None:
    """`output` (older: `result`) of a step is that of its last task."""
    if step.has("result") and isinstance(step.plain("result"), dict):
        step.rename("result", "output")
    if not step.has("output") or not tasks:
        return
    written = step.plain("output")
    if isinstance(written, dict) and written.keys() == {"schema"}:
        return  # what a step yields may stand on the step
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
    cursor = loop.below("cursor", "a cursor")
    if cursor is not None:
        auth_by_name(cursor)
    spec = loop.below("spec", "a loop's `spec`")
    frame = spec.below("frame", "a cursor's `frame`") if spec is not None else None
    for key in FRAME_HINTS:
        if frame is not None and frame.has(key):
            frame.ignore(key, "frames are bounded by rows and by their lease")
    for holder in (spec, loop):
        policy = holder.below("policy", "a loop's policy") if holder is not None else None
        if policy is not None:
            _order_of_results(policy)
            if holder is loop and not policy.names():
                loop.discard("policy")


def _order_of_results(policy: Written) -> None:
    results = policy.below("results")
    if results is not None and results.names() == ["preserve_order"]:
        if results.plain("preserve_order") is True:
            policy.leave_out("results", "results are always in the order of the collection")
        else:
            message = "`preserve_order` can only be `true`: results are always in order."
            results.refuse("preserve_order", "bad-value", message)


# --- Tasks -------------------------------------------------------------------------------------


def _pipeline(holder: Written, key: str, look: Look) -> list[Written]:
    """The tasks under a key, in order; those inside sugar are rewritten, too."""
    single = holder.below(key, "a task")
    found = []
    for entry in [single] if single is not None else holder.each(key, "a task"):
        keys = entry.names()
        body = entry.below(keys[0], "a task") if len(keys) == 1 else None
        if not _kind(entry) and body is not None and _kind(body):
            found.append(body)
        elif _kind(entry):
            found.append(entry)
        else:
            _sugar(entry, look)
    for task in found:
        _task(task, look)
    return found


def _sugar(entry: Written, look: Look) -> None:
    for branch in entry.each("choose", "a branch of `choose`"):
        for key in ("do", "else"):
            _pipeline(branch, key, look)
    for word in ("while", "until"):
        body = entry.below(word)
        if body is not None:
            _pipeline(body, "do", look)


def _task(task: Written, look: Look) -> None:
    tool = look.tools.get(task.text("kind") or "")
    for key in ("auth", "credential"):
        _ambient(task, key)
    if tool is not None:
        _config_in_spec(task, tool)
        _timeouts(task, tool)
        if tool.older is not None:
            tool.older(task)
    _spread_set(task, "set_ctx", "set_iter")
    _output(task)
    _around(task, look)


def _around(task: Written, look: Look) -> None:
    """What stands around a call: policy, hooks, retries."""
    spec = task.below("spec", "a task's `spec`")
    policy = spec.below("policy", "a task's policy") if spec is not None else None
    if policy is not None:
        for rule in policy.each("rules", "a policy rule"):
            _rule(rule)
        for hook in HOOKS:
            _pipeline(policy, hook, look)
    retry = task.below("retry", "a retry")
    if retry is not None:
        _retry(retry)
    _retry_list(task, look)


def _config_in_spec(task: Written, tool: ToolShape) -> None:
    """Config of the tool written into the task's `spec`."""
    spec = task.below("spec", "a task's `spec`")
    for key in spec.names() if spec is not None else ():
        if spec is None:
            continue
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
        spec = task.room("spec")
        if spec is not None:
            task.move(key, spec, "timeout", "write `spec: {timeout: …}`")


def _output(task: Written) -> None:
    output = task.below("output", "an `output`")
    for holder, key in ((output, "output_select"), (output, "select"), (task, "output_select")):
        selected = holder.plain(key) if holder is not None else None
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


def _rule(rule: Written) -> None:
    """A rule of any list: how it says `else`, and what it sets."""
    if "else" in rule.names() and not rule.has("else") and rule.has("then"):
        otherwise = rule.room("else")
        if otherwise is not None:
            rule.move("then", otherwise, "then", "write `else: {then: …}`")
    body = rule.below("else", "an `else`")
    holder = body if body is not None and body.has("then") else rule
    then = holder.below("then", "a rule's `then`")
    for actions in [then] if then is not None else holder.each("then", "a rule's `then`"):
        _set_list(actions)
    if body is not None and body is not holder:
        _set_list(body)


def _set_list(actions: Written) -> None:
    """`set: [{name, value}]` writes variables."""
    written = actions.plain("set")
    if not isinstance(written, list) or not written:
        return
    if all(isinstance(one, dict) and set(one) == {"name", "value"} for one in written):
        actions.gather("set", "vars.", "write `set: {vars.x: …}`")


def _case_rule(rule: Written, look: Look) -> None:
    _rule(rule)
    body = rule.below("else", "an `else`")
    holder = body if body is not None and body.has("then") else rule
    _then_steps(holder)
    then = holder.below("then", "a rule's `then`")
    blocks = [then] if then is not None else holder.each("then", "a rule's `then`")
    if body is not None and body is not holder:
        blocks.append(body)
    for block in blocks:
        for key in block.names():
            inner = block.below(key)
            if inner is None:
                continue
            if key == "sink":
                inner.what = "a sink"
                _sink(inner, look)
            elif key == "collect":
                _collect(inner, look)
            elif key == "retry":
                inner.what = "a retry"
                _paging_retry(block, inner)
                _retry(inner)
            elif inner.has("tool"):
                inner.what = "a named task"
                tool = inner.below("tool", "a task")
                if tool is not None:
                    _task(tool, look)
                _spread_set(inner, "set_ctx", "set_iter")
                _around(inner, look)
    chain = holder.below("retry", "a retry")
    if chain is not None:
        _retry(chain)


def _then_steps(holder: Written) -> None:
    """`then: [{step: x}]` leads somewhere: it is `then: {next: …}`."""
    then = holder.plain("then")
    if isinstance(then, list) and then and all(_is_target(one) for one in then):
        holder.wrap("then", "next", "write `then: {next: …}`")


def _is_target(value: Any) -> bool:
    return isinstance(value, dict) and "step" in value and set(value) <= {"step", "args"}


def _paging_retry(block: Written, retry: Written) -> None:
    """`retry` that changes the call asks for another page: it is a `call`."""
    changed = [key for key in ("args", "input", "with", "params") if retry.has(key)]
    if not changed or not set(retry.names()) <= {*changed, "max_attempts", "attempts"}:
        return
    for key in ("attempts", "max_attempts"):
        if retry.has(key):
            retry.rename(key, "max_calls")
    block.rename("retry", "call")


def _collect(collect: Written, look: Look) -> None:
    """`into: x` where ctx has a key `x` adds to that."""
    into = collect.text("into")
    if into is not None and into in look.ctx_keys and not look.is_parallel:
        collect.put("into", f"ctx.{into}", f"ctx has that key: write `into: ctx.{into}`")


def _sink(sink: Written, look: Look) -> None:
    tool = sink.below("tool", "a task")
    if tool is not None:
        if tool.text("kind") == "event_log":
            tool.put("kind", NOOP, "what a sink is given is recorded: write `kind: noop`")
        _task(tool, look)


def _retry_list(holder: Written, look: Look) -> None:
    for policy in holder.each("retry", "a retry policy"):
        then = policy.below("then", "a retry policy's `then`")
        if then is None:
            continue
        _retry(then)
        collect = then.below("collect", "a `collect`")
        if collect is not None:
            _collect(collect, look)
        sink = then.below("sink", "a sink")
        if sink is not None:
            _sink(sink, look)


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


class NodeWritten:
    """A mapping of the tree that the compiler reads."""

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
        found = self._node.entries.get(key)
        return self._of(found, what or f"`{key}` of {self.what}")

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
            found = node.entries.get(key)
            if nodes.is_null(found):
                place = found.place if found is not None else node.place
                found = nodes.Mapping(place)
                node.put(key, node.keys.get(key, place), found)
            if not isinstance(found, nodes.Mapping):
                return None
            node = found
        return NodeWritten(node, self.what, self._report, self._root)

    def rename(self, key: str, new: str) -> None:
        self.move(key, self, new, f"it is `{new}` today")

    def move(self, key: str, to: Written, new: str, today: str, code: str = "older-form") -> None:
        assert isinstance(to, NodeWritten)
        if new in to._node.entries and (to._node is not self._node or new != key):
            self._conflict(key, new)
            return
        if code == "older-form":
            self.note(key, today)
        else:
            self._say(code, key, f"`{key}` of {self.what}: {today}.")
        place, value = self._node.keys[key], self._node.entries[key]
        if to._node is self._node:
            self._replace_key(key, new)
            return
        self._take(key)
        to._node.put(new, place, value)

    def _conflict(self, key: str, new: str) -> None:
        self._report.add(
            "conflicting-keys",
            f"`{key}` of {self.what} is an older form of `{new}`, which is written, too."
            " Keep one of them.",
            self._node.keys[key],
        )
        self._take(key)

    def _replace_key(self, key: str, new: str) -> None:
        """Rename without changing the order, which means something among actions."""
        node = self._node
        pairs = [(new if k == key else k, node.keys[k], v) for k, v in node.entries.items()]
        node.entries, node.keys = {}, {}
        for name, place, value in pairs:
            node.put(name, place, value)

    def _take(self, key: str) -> None:
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
                self._take(key)
                continue
            self.note(key, f"write `{to}: {{{prefix}x: …}}`")
            for name, value in source.entries.items():
                joined.put(f"{prefix}{name}", source.keys[name], value)
            place = self._node.keys[key]
            self._take(key)
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

    def leave_out(self, key: str, today: str) -> None:
        self.note(key, today)
        self._take(key)

    def discard(self, key: str) -> None:
        self._take(key)

    def ignore(self, key: str, why: str) -> None:
        self._say("hint-ignored", key, f"`{key}` of {self.what} is accepted without effect: {why}.")
        self._take(key)

    def note(self, key: str, today: str) -> None:
        self._say(
            "older-form",
            key,
            f"`{key}` of {self.what} is an older form: {today}. `noetl migrate` rewrites it.",
        )

    def refuse(self, key: str, code: str, message: str) -> None:
        self._say(code, key, message)
        self._take(key)

    def _say(self, code: str, key: str, message: str) -> None:
        # What is moved no longer stands where the author wrote it.
        self._report.remember_paths(self._root)
        self._report.add(code, message, self._node.keys[key])


def _node_of(value: Any, place: Place) -> Node:
    """Plain data as nodes that all stand at one place."""
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
    """Put the older forms of a document that was just read into today's words."""
    rewrite(NodeWritten(root, "a playbook", report, root), tools)
