"""Migrates the ways out of a step: every `next` becomes a router with arcs."""

from __future__ import annotations

from itertools import groupby

from noetl.dsl.building import Where
from noetl.rewrite.edit import Work
from noetl.rewrite.tasks import migrate_condition
from noetl.rewrite.templates import fits
from noetl.rewrite.tree import (
    Branch,
    Entry,
    Leaf,
    Lines,
    Tree,
    children,
    gather,
    is_null,
    items,
    mapping,
    mapping_at,
    merges,
    own_mapping,
    pair,
    text_at,
    text_in,
    without_blanks,
)

_AT_THE_END = frozenset({"step.exit"})
_OF_A_LOOP = frozenset({"loop.done"})
"""In a looped step `step.exit` is the end of each iteration, which arcs do not see."""
_OF_A_CALL = frozenset({"call.done", "call.error"})
_CASE_DEFAULTS = {
    "case_mode": "exclusive",
    "eval_mode": "on_entry",
    "branch_order": "source",
    "next_policy": "end_step",
    "on_error": "fail",
}


# --- Structural next ---------------------------------------------------------------------------


def migrate_next(work: Work, step: Branch) -> None:
    """A `next` of names, lists or conditions becomes one with arcs."""
    entry = step.find("next")
    if entry is None or is_null(entry.value):
        return
    router = mapping_at(entry.value)
    if router is not None and (router.find("arcs") or router.find("spec")):
        for item in items(router.get("arcs")):
            _migrate_arc(work, item)
        return
    ways = _ways(entry)
    if ways is None:
        work.kept(
            entry,
            "`next` has conditions that lead to several steps at once, or a form that cannot be"
            " told apart. Write `next: {arcs: [{step, when}]}` by hand.",
        )
        return
    guards = {id(way.when) for way in ways}
    is_ladder = any(way.when is not None for way in ways) and len(guards) > 1
    mode = "exclusive" if is_ladder else "inclusive"
    arcs = [way.arc() for way in ways]
    entry.value = _router(mode, arcs, _tail_of_list(entry))
    work.changed(
        entry,
        "`next` has arcs; the first whose condition holds is taken."
        if is_ladder
        else "`next` has arcs.",
    )


def _router(mode: str, arcs: list[Entry], tail: Lines) -> Branch:
    router = mapping(pair("arcs", Branch(False, arcs, tail=tail)))
    if len(arcs) > 1:
        router.entries.insert(0, pair("spec", mapping(pair("mode", mode), flow=True)))
    return router


def _tail_of_list(entry: Entry | None) -> Lines:
    """The comments behind the last item, if this is a list of items."""
    value = entry.value if entry is not None else None
    return value.tail if isinstance(value, Branch) and not value.is_map else []


_ARGS = ("with", "input")
"""What people call the `args` of a target or an arc."""


class _Way:
    """One target of a `next`, and the condition that leads to it: what an arc is made from."""

    def __init__(self, item: Entry, when: Entry | None = None) -> None:
        self.item = item
        self.when = when
        self.above: Lines = []
        """Comments of the entries around the target, which are gone."""
        target = item.value
        self.step = target.find("step") if isinstance(target, Branch) else None
        self.rest = [e for e in children(target) if e.name in {"args", "spec", *_ARGS}]

    def parts(self) -> list[Tree | Entry]:
        """What the arc keeps."""
        found: list[Tree | Entry] = [self.item, self.item.value]
        return found if self.when is None else [*found, self.when]

    def arc(self) -> Entry:
        made = Entry(mapping(), lead=[*self.above, *filter(None, self.item.lead)])
        target = self.item.value
        step = self.step if self.step is not None else pair("step", target)
        entries = [step]
        if self.when is not None:
            entries.append(pair("when", self.when.value))
            entries[-1].lead = without_blanks(self.when.lead)
            entries[-1].side = self.when.side
            # A guard shared by several arcs keeps its comments on the first.
            self.when.side, self.when.lead = "", []
        for entry in self.rest:
            if entry.name in _ARGS:
                entry.rename("args")
            entries.append(entry)
        made.value = Branch(True, entries)
        if isinstance(target, Branch):
            made.lead += [self.item.side] if self.item.side else []
            made.value.tail = target.tail
        else:
            step.side = self.item.side
        return made


def _ways(entry: Entry) -> list[_Way] | None:
    """The targets of a `next` without arcs, in order; None if they are not tried one by one."""
    value = entry.value
    found: list[_Way] = []
    for rung in items(value) or [Entry(value, line=entry.line)]:
        ways = _rung(rung)
        if not ways:
            return None
        if ways[0].item is not rung:
            ways[0].above = _comments_around(rung, ways)
        found += ways
    guards = [way.when for way in found]
    if all(guard is None for guard in guards):
        return found
    shares_one_guard = len({id(guard) for guard in guards}) == 1
    is_ladder = len({id(guard) for guard in guards}) == len(guards)
    if None in guards[:-1] or not (shares_one_guard or is_ladder):
        return None
    return found


def _comments_around(shell: Entry, ways: list[_Way]) -> Lines:
    return gather(shell, [part for way in ways for part in way.parts()])


def _rung(item: Entry) -> list[_Way] | None:
    if text_in(item.value) is not None:
        return [_Way(item)]
    value = own_mapping(item.value)
    if value is None:
        return None
    when, then, other = value.find("when"), value.find("then"), value.find("else")
    names = {entry.name for entry in value.entries}
    if "step" in names and names <= {"step", "args", "when", "spec", *_ARGS}:
        return [_Way(item, when)]
    if names - {"when", "then", "else"} or (when is None) != (then is None):
        return None
    found: list[_Way] = []
    if then is not None:
        targets = _targets(then)
        if targets is None:
            return None
        found += [_Way(target, when) for target in targets]
    if other is not None:
        targets = _targets(other)
        if targets is None or len(targets) != 1:
            return None
        found += [_Way(target) for target in targets]
    return found


def _targets(entry: Entry) -> list[Entry] | None:
    """`name`, `{step, args}` or a list of those, as the items of a list."""
    value = entry.value
    found = items(value) or [Entry(value, line=entry.line)]
    for item in found:
        names = {part.name for part in children(own_mapping(item.value))}
        is_target = "step" in names and names <= {"step", "args", *_ARGS}
        if text_in(item.value) is None and not is_target:
            return None
    return found


def _migrate_arc(work: Work, item: Entry) -> None:
    arc = item.value
    if not isinstance(arc, Branch) or merges(arc):
        return
    migrate_condition(work, arc)
    for name in _ARGS:
        work.rename(arc, name, "args", "an arc")
    entry = arc.find("set")
    if entry is None:
        return
    written = mapping_at(entry.value)
    keys = {part.name for part in children(written)}
    taken = {part.name for part in children(arc.get("args"))}
    is_args = keys and not any(key.partition(".")[0] in ("ctx", "iter") for key in keys)
    if written is None or merges(written) or not is_args or keys & taken:
        work.kept(
            entry,
            "`set` on an arc stays: only there a token can change ctx on its way. Policy rules"
            " with `set_ctx` write earlier, while the step still runs.",
        )
        return
    args = arc.find("args")
    if args is None:
        entry.rename("args")
    elif isinstance(args.value, Branch) and args.value.is_map and not merges(args.value):
        written.entries[0].lead[:0] = gather(entry, written.entries)
        args.value.entries += written.entries
        arc.remove(entry)
    else:
        work.kept(entry, "`set` is `args`, which stands elsewhere. Join them by hand.")
        return
    work.changed(entry, "`set` of an arc that writes no ctx is `args`.")


# --- Event rules that only route -----------------------------------------------------------------


def migrate_case(work: Work, step: Branch) -> None:
    """A `case` whose rules only route becomes guarded arcs; any other stays."""
    case = step.find("case")
    if case is None or is_null(case.value):
        return
    for rule in items(case.value):
        migrate_condition(work, rule.value)
    reason, ways = _why_case_stays(work, step, case)
    if reason is not None:
        work.kept(
            case,
            f"`case` stays: {reason}. Rules that act on results are task policy rules in"
            " canonical form, rules that route are guards in `next.arcs`.",
        )
        return
    structural = step.find("next")
    rest = (_ways(structural) or []) if structural is not None else []
    if structural is not None and rest:
        rest[0].above += without_blanks((*structural.lead, structural.side))
    by_rule = [list(own) for _, own in groupby(ways, lambda way: id(way.when))]
    for rule, own in zip(items(case.value), by_rule, strict=True):
        own[0].above = _comments_around(rule, own)
    arcs = [way.arc() for way in [*ways, *rest]]
    mode = "exclusive" if len(items(case.value)) > 1 or rest else "inclusive"
    router = pair("next", _router(mode, arcs, _tail_of_list(case) + _tail_of_list(structural)))
    router.lead = [*case.lead, *([case.side] if case.side else [])]
    step.remove(case)
    if structural is not None:
        step.remove(structural)
    step.entries.append(router)
    work.changed(case, "the rules of `case` only route; they are guards in `next.arcs`.")


def _why_case_stays(work: Work, step: Branch, case: Entry) -> tuple[str | None, list[_Way]]:
    rules = items(case.value)
    reason = _why_step_needs_case(step)
    if reason is not None or not rules:
        return reason or "it is not a list of rules", []
    local = _local_names(step)
    at_the_end = _OF_A_LOOP if step.find("loop") is not None else _AT_THE_END
    allowed = at_the_end | _OF_A_CALL if _calls_once(step) else at_the_end
    ways: list[_Way] = []
    seen: set[str] = set()
    for rule in rules:
        own = _rule_ways(work, rule, local)
        if own is None:
            return f"the rule on line {rule.line} does more than route when a condition holds", []
        guard = text_in(own[0].when.value if own[0].when else None) or ""
        events = set(work.expressions.event_names(guard) or ())
        if not events or not events <= allowed:
            return (
                f"the rule on line {rule.line} can fire before the step has ended, and an arc"
                f" cannot; test `event.name` for `{next(iter(at_the_end))}`",
                [],
            )
        if events & _OF_A_CALL and seen & _AT_THE_END:
            return "rules for a call stand behind rules for the end of the step", []
        seen |= events
        ways += own
    return _why_mix_stays(step, rules, ways, seen), ways


def _why_mix_stays(
    step: Branch, rules: list[Entry], ways: list[_Way], events: set[str]
) -> str | None:
    structural = step.find("next")
    rest = _ways(structural) if structural is not None and not is_null(structural.value) else []
    if rest is None or any(way.when is not None for way in rest):
        return "the step's own `next` has conditions too"
    if len(rest) > 1 or (len(ways) > len(rules) and (len(rules) > 1 or rest)):
        return "it leads to several steps at once, which only arcs without order can"
    if events & _OF_A_CALL and any(step.find(key) for key in ("retry", "sink", "vars", "set")):
        return "a rule for a call decides before `retry`, `sink`, `vars` and `set` of the step do"
    return None


def _why_step_needs_case(step: Branch) -> str | None:
    if merges(step):
        return "the step takes keys from elsewhere with `<<`"
    spec = step.get("spec")
    for key, default in _CASE_DEFAULTS.items():
        written = text_at(spec, key)
        if written not in (None, default):
            return f"`{key}: {written}` has no meaning for arcs"
    return None


def _calls_once(step: Branch) -> bool:
    """Whether the step makes one call, whose end is the end of the step."""
    tool = step.get("tool")
    tasks = [tool] if mapping_at(tool) is not None else [item.value for item in items(tool)]
    if step.find("loop") is not None or len(tasks) != 1 or not isinstance(tasks[0], Branch):
        return False
    has_policy = mapping_at(tasks[0], "spec", "policy") is not None
    return not has_policy and not any(tasks[0].find(key) for key in ("retry", "poll", "set", "<<"))


def _local_names(step: Branch) -> frozenset[str]:
    """Names that exist in the step's rules and not in its arcs: loop elements and task results."""
    loop = step.get("loop")
    found = {text_at(loop, "iterator"), text_at(loop, "element"), text_at(step.get("tool"), "name")}
    found |= {text_at(item.value, "name") for item in items(step.get("tool"))}
    return frozenset(name for name in found if name)


def _rule_ways(work: Work, rule: Entry, local: frozenset[str]) -> list[_Way] | None:
    """The targets of a rule that does nothing but route; None if it does more."""
    body = rule.value
    if not isinstance(body, Branch) or not body.is_map or merges(body):
        return None
    when, then = body.find("when"), body.find("then")
    if when is None or then is None or len(body.entries) != 2 or not isinstance(when.value, Leaf):
        return None
    actions = then.value
    if len(items(actions)) == 1:
        actions = items(actions)[0].value
    if not isinstance(actions, Branch) or [entry.name for entry in actions.entries] != ["next"]:
        return None
    action = actions.entries[0]
    named = mapping_at(action.value)
    if named is not None and named.find("to") is not None:
        if len(named.entries) != 1:
            return None
        action = named.entries[0]
    targets = _targets(action)
    if not targets or not fits(work, when.value, Where.ARC, local):
        return None
    if not all(fits(work, target.value, Where.ARC, local) for target in targets):
        return None
    return [_Way(target, when) for target in targets]
