"""Describes a step in words: what it waits for, what it runs, what its rules do. One fact per
row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, assert_never

from noetl.cli.output import cut, one_line
from noetl.cli.views.paint import Row, Span
from noetl.model.net import (
    Amount,
    AnyAction,
    Block,
    Break,
    Call,
    Collect,
    Condition,
    Continue,
    Fail,
    Join,
    Jump,
    Loop,
    Patch,
    Poll,
    Result,
    Retry,
    Route,
    Rule,
    Run,
    Skip,
    Step,
    Task,
    Value,
    Values,
)

if TYPE_CHECKING:
    from noetl.model.toolshape import ToolShape


INDENT = Span("  ")
_ONE_EXPRESSION = re.compile(r"\{\{((?:(?!\}\}).)*)\}\}", re.DOTALL)
VALUE_CHARACTERS_MAX = 60
NAME_WIDTH_MAX = 24


def expression(text: str) -> str:
    """A template for reading: without braces if it is one expression."""
    match = _ONE_EXPRESSION.fullmatch(text.strip())
    return one_line(match[1] if match else text)


def guard(when: Condition | None) -> str:
    """The condition of a rule or arc; empty if it always holds."""
    if when is None or when is True:
        return ""
    return "never" if when is False else f"if {expression(when)}"


def amount(value: Amount) -> str:
    """A number, or the expression that yields one."""
    return expression(value) if isinstance(value, str) else f"{value:g}"


def seconds(value: Value) -> str:
    """A duration in the largest unit that keeps it short."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {seconds(part)}" for key, part in value.items())
    if isinstance(value, str) or value is None or isinstance(value, bool):
        return expression(str(value))
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if value >= length and value % length == 0:
            return f"{value // length:g} {unit}"
    return f"{value:g} s"


def brief(value: Value) -> str:
    """Any value, shortened to fit beside others."""
    if isinstance(value, str):
        text = expression(value)
    elif isinstance(value, list):
        text = f"[{', '.join(brief(item) for item in value[:10])}{', …' * (len(value) > 10)}]"
    elif isinstance(value, dict):
        text = f"{{{', '.join(one_line(str(key)) for key in list(value)[:10])}}}"
    else:
        text = str(value)
    return cut(text, VALUE_CHARACTERS_MAX)


# --- Steps -------------------------------------------------------------------------------------


def step_rows(step: Step) -> Iterator[Row]:
    """Everything about a step except its arcs, in the order in which it happens."""
    if step.description:
        yield (Span(one_line(step.description), "prose"),)
    for admit in step.admit:
        verb = "admit" if admit.allow else "refuse"
        yield Span(verb, "word"), Span(f" {guard(admit.when) or 'otherwise'}", "guard")
    if step.join != Join():
        yield Span("join", "word"), Span(f" {_join(step.join)}")
    if step.loop is not None:
        yield loop_row(step.loop)
    if step.case.wait:
        yield from _waiting(step)
    yield from _pipeline(step.tasks, step.name)
    if step.sink is not None:
        yield Span("sink ", "word"), *_task(step.sink, "")
    yield from _event_rules(step)
    written = [*(f"vars.{name}" for name in step.vars), *_written(step.patch)]
    if written:
        yield Span("set ", "word"), Span(", ".join(written))
    yield from _life(step)


def _join(join: Join) -> str:
    match join.kind:
        case "each":
            return "each: one run per token"
        case "all":
            return "all: one token from every arc"
        case "any":
            return "any: the first token runs, the others are absorbed"
        case "count":
            return f"after {join.count} tokens"
        case "auto":
            return "auto"
        case _:
            assert_never(join.kind)


def loop_row(loop: Loop) -> Row:
    """What a step loops over, and how many iterations run at the same time."""
    if loop.range is not None:
        start, stop, step = map(amount, (loop.range.start, loop.range.stop, loop.range.step))
        source = f"{start} to {stop}" + ("" if step == "1" else f" by {step}")
    elif loop.cursor is not None:
        source = f"rows claimed from {loop.cursor.kind}"
    else:
        source = expression(loop.items) if isinstance(loop.items, str) else brief(loop.items)
    facts: list[str] = [loop.mode]
    if loop.max_in_flight is not None:
        facts.append(f"{amount(loop.max_in_flight)} in flight")
    if loop.batch_size is not None:
        facts.append(f"batches of {amount(loop.batch_size)}")
    if loop.placement == "local" and loop.mode == "parallel":
        facts.append("on one worker")
    if loop.on_error == "continue":
        facts.append("continues after errors")
    facts += [f"{reducer} {key}" for key, reducer in loop.reduce.items()]
    return (
        Span("for each ", "word"),
        Span(one_line(loop.iterator), "name"),
        Span(" in ", "word"),
        Span(source, "guard"),
        Span(f"  ({', '.join(facts)})", "quiet"),
    )


def _waiting(step: Step) -> Iterator[Row]:
    about = f" that {guard(step.match)}" if step.match is not None else ""
    yield Span("waits for events", "word"), Span(about.replace(" that if ", " where "), "guard")
    for timer in step.timers:
        when = f"after {seconds(timer.after)}" if timer.after is not None else f"at {timer.at}"
        yield INDENT, Span("timer ", "word"), Span(one_line(f"{timer.id} {when}"))
    if step.form:
        fields = ", ".join(
            f"{field.name} ({field.type}{'' if field.required else ', optional'})"
            for field in step.form
        )
        yield INDENT, Span("asks a person ", "word"), Span(one_line(fields))


def _life(step: Step) -> Iterator[Row]:
    facts = []
    if step.timeout is not None:
        facts.append(f"timeout {seconds(step.timeout)}")
    if step.deadline is not None:
        facts.append(f"deadline {seconds(step.deadline)} after the start")
    if step.failure_mode != "fail_fast":
        facts.append("others finish if it fails")
    if step.on_error != "fail":
        facts.append(f"on error {step.on_error}")
    if step.compensate is not None:
        facts.append(f"undone by {step.compensate}")
    if step.pool is not None:
        facts.append(f"pool {step.pool}")
    if facts:
        yield (Span(one_line("; ".join(facts)), "quiet"),)


def block_rows(block: Block) -> Iterator[Row]:
    """The rows of a workbook entry."""
    if block.description:
        yield (Span(one_line(block.description), "prose"),)
    if block.loop is not None:
        yield loop_row(block.loop)
    yield from _pipeline(block.tasks, block.name)


# --- Tasks -------------------------------------------------------------------------------------


def _pipeline(tasks: tuple[Task, ...], home: str) -> Iterator[Row]:
    names = [shown_name(task, home) for task in tasks]
    width = min(max(map(len, names), default=0), NAME_WIDTH_MAX)
    for task, name in zip(tasks, names, strict=True):
        yield _task(task, f"{name:{width}}")
        yield from _task_rules(task)


def shown_name(task: Task, home: str) -> str:
    """The name given by the author; empty for the default name of a lone task."""
    return "" if task.name == f"{home}_task" else one_line(task.name)


def _task(task: Task, name: str) -> Row:
    return (
        Span(f"{name}  " if name else "", "name"),
        Span(one_line(task.kind), "kind"),
        Span(f"  {summary(task)}".rstrip(), "quiet"),
    )


_TELLING = (
    *("task", "path", "model", "tool_name", "resource", "image", "command", "commands"),
    *("cmd", "cmds", "table", "secret", "code", "script", "url"),
)
"""Fields by which people recognise a call; the first one present is shown."""


@cache
def tool_shapes() -> Mapping[str, ToolShape]:
    """The installed kinds: each declares which fields to show of its calls."""
    from noetl.tools.registry import tools

    return tools()


def summary(task: Task) -> str:
    """The one field of a call by which people recognise it."""
    config = task.config
    tool = tool_shapes().get(task.kind)
    if tool is not None and tool.tells is not None:
        return brief(" ".join(expression(str(part)) for part in tool.tells(config)))
    if "op" in config:
        about = next((config[key] for key in ("key", "subject", "job_id") if key in config), "")
        return brief(f"{config['op']} {expression(str(about))}")
    for key in _TELLING:
        value = config.get(key)
        if isinstance(value, list) and value:
            value = value[0]
        if value is not None:
            return brief(_first_line(value))
    return ""


def _first_line(value: Value) -> str:
    lines = [line for line in str(value).splitlines() if line.strip()]
    return f"{lines[0].strip()} …" if len(lines) > 1 else "".join(lines)


def _task_rules(task: Task) -> Iterator[Row]:
    if task.timeout is not None:
        yield INDENT, Span("timeout ", "word"), Span(seconds(task.timeout))
    if task.poll is not None:
        yield INDENT, Span("poll ", "word"), Span(_poll(task.poll), "guard")
    for index, rule in enumerate((*task.retries, *task.rules)):
        yield INDENT, *_rule(rule, index == 0)
    for word, hooks in (
        ("before", task.before),
        ("after", task.after),
        ("finally", task.finally_),
    ):
        for hook in hooks:
            yield INDENT, Span(f"{word} ", "word"), *_task(hook, one_line(hook.name))
    if task.patch is not None:
        yield INDENT, Span("set ", "word"), Span(", ".join(_written(task.patch)))


def _poll(poll: Poll) -> str:
    text = f"until {expression(str(poll.until))}, every {seconds(poll.interval)}"
    if poll.max_attempts is not None:
        text += f", at most {amount(poll.max_attempts)} times"
    if poll.deadline is not None:
        text += f", for {seconds(poll.deadline)}"
    return text


# --- Rules -------------------------------------------------------------------------------------


def _rule(rule: Rule, is_first: bool) -> Row:
    open_word = "always" if is_first or rule.when is True else "else"
    return (
        Span(guard(rule.when) or open_word, "guard"),
        Span(": ", "quiet"),
        Span("; ".join(map(describe_action, rule.actions)) or "nothing"),
    )


def _event_rules(step: Step) -> Iterator[Row]:
    if step.rules and step.case.mode == "inclusive":
        yield Span("case", "word"), Span(" inclusive: every rule that holds", "quiet")
    for number, rule in enumerate(step.rules, 1):
        priority = f" (priority {rule.priority})" if rule.priority else ""
        yield Span(f"case {number}{priority} ", "word"), *_rule(rule, number == 1)
        if rule.retry is not None:
            yield INDENT, Span(f"the whole chain: {describe_action(rule.retry)}", "quiet")


def describe_action(action: AnyAction) -> str:
    """An action in a few words."""
    match action:
        case Continue():
            return "continue"
        case Break():
            return "break"
        case Jump():
            return f"jump to {one_line(action.to)}"
        case Fail():
            return "fail" if action.error is None else f"fail with {brief(action.error)}"
        case Retry():
            return _retry(action)
        case Call():
            return f"call again{_changing(action.overrides)}"
        case Collect():
            return f"{action.mode} {expression(action.source)} to {one_line(action.into)}"
        case Patch():
            return f"set {', '.join(_written(action))}"
        case Result():
            return f"yield {brief(action.value)}"
        case Run():
            verb = "sink to" if action.sink else f"run {one_line(action.task.name)}:"
            return f"{verb} {one_line(f'{action.task.kind} {summary(action.task)}')}"
        case Route():
            targets = ", ".join(expression(target.step) for target in action.targets)
            delay = f" after {seconds(action.delay)}" if action.delay is not None else ""
            return f"go to {targets}{delay}"
        case Skip():
            return "skip" if action.reason is None else f"skip: {brief(action.reason)}"
        case _:
            assert_never(action)


def _retry(retry: Retry) -> str:
    text = f"retry, {amount(retry.attempts)} tries"
    if retry.backoff != "none" and retry.delay != 0:
        text += f", {retry.backoff} {seconds(retry.delay)}"
        if retry.max_delay is not None:
            text += f" up to {seconds(retry.max_delay)}"
        if retry.jitter:
            text += " with jitter"
    return text + _changing(retry.overrides)


def _changing(overrides: Values) -> str:
    return f" with another {', '.join(map(one_line, overrides))}" if overrides else ""


def _written(patch: Patch | None) -> list[str]:
    if patch is None:
        return []
    return [
        *(one_line(f"ctx.{name}") for name in patch.ctx),
        *(one_line(f"iter.{name}") for name in patch.iter),
        *(one_line(str(name)) for name in patch.local),
    ]
