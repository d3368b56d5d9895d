"""Help for editors: what may be written at a place of the text, and what the word there means.

The text is still being typed, so it need not be valid: places are found by indentation and
brackets, keys come from the JSON Schema, and names from the text itself. Mistakes are reported by
the compiler.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.tests import TESTS as JINJA_TESTS

from noetl.dsl import nodes
from noetl.dsl.grammar import Schema
from noetl.dsl.nodes import field, items
from noetl.dsl.read import read
from noetl.dsl.report import Report
from noetl.model import schemas
from noetl.model.language import AboutDocument
from noetl.model.language import OfferDocument as Offer
from noetl.templates.filters import FILTERS
from noetl.templates.functions import FUNCTIONS
from noetl.templates.operators import TESTS

ROOTS: Mapping[str, str] = {
    "ctx": "What the execution has written so far.",
    "workload": "What the execution was started with, over the playbook's defaults.",
    "vars": "Variables of the execution.",
    "args": "The args of the token and of the step.",
    "iter": "The element of a loop's iteration, by the name of the iterator.",
    "event": "The event that just happened: `event.name`, `event.data`.",
    "error": "Why the step or call failed.",
    "result": "The result of the call or step.",
    "output": "The outcome of the call: `output.status`, `output.result`, `output.error`.",
    "keychain": "Secrets of the playbook's keychain, on workers only.",
    "steps": "The results of steps, by name.",
    "execution_id": "The id of the execution.",
}
STEP_KEYS = frozenset({"step", "next", "to_step", "compensate"})
OFFERED_MAX = 200
_KEY = re.compile(r"^(?P<indent>\s*)(?P<dashes>(?:-\s+)*)(?P<key>[\w.$-]+|\"[^\"]*\"):(?:\s|$)")
_STEP = re.compile(r"^\s*(?:-\s+)?\{?\s*(?:-\s+)?step:\s*[\"']?([A-Za-z_][\w-]*)", re.MULTILINE)
_CTX = re.compile(r"\bctx\.([A-Za-z_]\w*)")
_WORD = re.compile(r"[\w$-]+")


class Place(NamedTuple):
    """A place in the text."""

    path: tuple[str, ...]
    """The keys from the root; `[]` is an entry of a list."""
    siblings: Mapping[str, str]
    """The keys beside it, with their scalar values."""
    key: str | None
    """The key whose value is being typed; None while a key is."""
    typed: str
    """The part of the word before the place."""
    template: str | None
    """Inside a template: its text before the place."""


# --- Places -------------------------------------------------------------------------------------


def place_of(text: str, line: int, column: int) -> Place:
    """Describe a place in the text; line and column count from 1."""
    lines = text.splitlines() or [""]
    line = max(1, min(line, len(lines)))
    before = lines[line - 1][: max(0, column - 1)]
    typed = re.findall(r"[\w-]*$", before)[0]
    opened = before.rfind("{{")
    template = before[opened + 2 :] if opened >= 0 and "}}" not in before[opened:] else None
    path, siblings = _block(lines, line - 1, before)
    if template is None and (flow := _flow(before)) is not None:
        return _in_flow(path, flow, typed)
    found = _KEY.match(before)
    key = found["key"].strip('"') if found else None
    return Place(path, siblings, key, typed, template)


def _block(lines: list[str], at: int, before: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """The path of keys above a line, and the keys beside it.

    Upwards from the line, what begins further left than all so far is around it: a key, or the dash
    of an entry. A key may also stand right above the dashes of its list.
    """
    column = left = _first(before)
    path: list[str] = []
    siblings: dict[str, str] = {}

    def note_sibling(line: str, found: re.Match[str]) -> None:
        siblings[found["key"].strip('"')] = line[found.end() :].strip().strip("\"'")

    above: list[tuple[str, re.Match[str] | None]] = [(before, None)]
    above += [(line, found) for line in reversed(lines[:at]) if (found := _KEY.match(line))]
    for line, found in above:
        start = len(line) if found is None else found.start("key")
        if found is not None and (start < left or (start == left and path[-1:] == ["[]"])):
            path.append(found["key"].strip('"'))
            left = start
        elif found is not None and start == column and not path:
            note_sibling(line, found)
        for dash in reversed(_dashes(line)):
            if dash < left:
                path.append("[]")
                left = dash
    for line in filter(str.strip, lines[at + 1 :]):
        if _first(line) < column or (_first(line) == column and _dashes(line)):
            break
        found = _KEY.match(line)
        if found is not None and found.start("key") == column:
            note_sibling(line, found)
    return tuple(reversed(path)), siblings


def _first(line: str) -> int:
    """The column of the first thing on a line, after its dashes."""
    return len(line) - len(line.lstrip(" -")) if line.strip(" -") else len(line)


def _dashes(line: str) -> list[int]:
    """The columns of the dashes with which list entries begin on a line."""
    return [found.start() for found in re.finditer(r"-(?= |$)", line[: _first(line)])]


def _flow(before: str) -> list[str] | None:
    """The text in each open bracket before a place, outermost first; None if none is open."""
    parts: list[str] = []
    current, quote = "", ""
    stack: list[str] = []
    for letter in before:
        if quote:
            quote = "" if letter == quote else quote
            current += letter
        elif letter in "\"'":
            quote = letter
            current += letter
        elif letter in "{[":
            stack.append(letter)
            parts.append(current)
            current = "" if letter == "{" else "[]"
        elif letter in "}]" and stack:
            stack.pop()
            current = parts.pop() + "…"
        else:
            current += letter
    return [*parts, current] if stack else None


def _in_flow(path: tuple[str, ...], flow: list[str], typed: str) -> Place:
    found = list(path)
    for part in flow[:-1]:
        if part.startswith("[]"):
            found.append("[]")
        if match := re.search(r"([\w.$-]+)\s*:\s*$", part):
            found.append(match[1])
    inside = flow[-1]
    if inside.startswith("[]"):
        return Place((*found, "[]"), {}, None, typed, None)
    siblings: dict[str, str] = {}
    for piece in inside.split(","):
        key, colon, value = piece.partition(":")
        if colon:
            siblings[key.strip().strip("\"'")] = value.strip().strip("\"'")
    key, colon, _ = inside.rpartition(",")[2].partition(":")
    return Place(tuple(found), siblings, key.strip() if colon else None, typed, None)


# --- The schema ---------------------------------------------------------------------------------


def schemas_at(schema: Schema, path: tuple[str, ...], siblings: Mapping[str, str]) -> list[Schema]:
    """The schemas of a mapping at a path: several if several forms are allowed."""
    current = [schema]
    for depth, key in enumerate(path):
        beside = siblings if depth == len(path) - 1 else {}
        following: list[Schema] = []
        for one in _expanded(schema, current, beside):
            if key == "[]":
                items = one.get("items")
                following += [items] if isinstance(items, dict) else []
            elif key in one.get("properties", {}):
                following.append(one["properties"][key])
            elif isinstance(one.get("additionalProperties"), dict):
                following.append(one["additionalProperties"])
        current = following
    return list(_expanded(schema, current, siblings))


def _expanded(root: Schema, found: list[Schema], siblings: Mapping[str, str]) -> Iterator[Schema]:
    """The schemas with references followed and choices expanded."""
    waiting, seen = list(found), 0
    while waiting and seen < 500:
        one = waiting.pop(0)
        seen += 1
        if "$ref" in one:
            waiting.insert(0, _target(root, one["$ref"]))
            one = {key: value for key, value in one.items() if key != "$ref"}
        for choice in ("anyOf", "oneOf", "allOf"):
            for part in one.get(choice, ()):
                chosen = part.get("if", {}).get("properties", {}).get("kind", {}).get("const")
                if chosen is None:
                    waiting.append(part)
                elif siblings.get("kind") == chosen:
                    waiting.append(part["then"])
        yield one


def _target(root: Schema, reference: str) -> Schema:
    found: Any = root
    for part in reference.removeprefix("#/").split("/"):
        found = found.get(part, {}) if isinstance(found, dict) else {}
    return found if isinstance(found, dict) else {}


# --- Completions --------------------------------------------------------------------------------


def offers(text: str, line: int, column: int, schema: Schema) -> list[Offer]:
    """The completions at this place, the likeliest first."""
    place = place_of(text, line, column)
    if place.template is not None:
        found = list(_in_template(text, place))
    elif place.key is not None:
        found = list(_values(text, place, schema))
    else:
        found = list(_keys(place, schema))
    typed = place.typed.lower()
    return [one for one in found if one.text.lower().startswith(typed)][:OFFERED_MAX]


def _keys(place: Place, schema: Schema) -> Iterator[Offer]:
    seen = set(place.siblings) - {place.typed}
    for one in schemas_at(schema, place.path, place.siblings):
        for key, part in one.get("properties", {}).items():
            if key not in seen and not part.get("deprecated"):
                seen.add(key)
                yield Offer(key, "key", _description(schema, part))


def _values(text: str, place: Place, schema: Schema) -> Iterator[Offer]:
    assert place.key is not None
    if place.key in STEP_KEYS and place.path != ("workflow", "[]"):
        yield from (Offer(name, "step", "") for name in step_names(text))
    siblings = {key: value for key, value in place.siblings.items() if key != place.key}
    seen: set[str] = set()
    for one in schemas_at(schema, place.path, siblings):
        part = one.get("properties", {}).get(place.key)
        for form in _expanded(schema, [part], {}) if isinstance(part, dict) else ():
            words = [*form.get("enum", ()), *([form["const"]] if "const" in form else ())]
            words += ["true", "false"] if form.get("type") == "boolean" else []
            for word in map(str, words):
                if word not in seen:
                    seen.add(word)
                    yield Offer(word, "value", _kind_summary(schema, place.key, word))


def _kind_summary(schema: Schema, key: str, word: str) -> str:
    if key != "kind":
        return ""
    return str(schema.get("$defs", {}).get(f"task_{word}", {}).get("description", ""))


def _in_template(text: str, place: Place) -> Iterator[Offer]:
    before = place.template or ""
    head = before[: len(before) - len(place.typed)].rstrip(" ")
    if head.endswith("|"):
        yield from (Offer(name, "filter", _doc(FILTERS, name)) for name in sorted(FILTERS))
    elif re.search(r"\bis(?:\s+not)?$", head):
        yield from (Offer(name, "test", _doc(TESTS, name)) for name in sorted(TESTS))
    elif head.endswith("."):
        root = re.search(r"([A-Za-z_]\w*)\.$", head)
        yield from _members(text, root[1] if root else "")
    else:
        yield from (Offer(name, "step", "The result of this step.") for name in step_names(text))
        yield from (Offer(name, "name", about) for name, about in ROOTS.items())
        yield from (Offer(name, "function", _doc(FUNCTIONS, name)) for name in sorted(FUNCTIONS))


def _members(text: str, root: str) -> Iterator[Offer]:
    """The names after `root.`, as far as the text shows them."""
    if root == "ctx":
        yield from (Offer(name, "name", "Of ctx.") for name in dict.fromkeys(_CTX.findall(text)))
    elif root == "workload":
        yield from (Offer(name, "name", "Of the workload.") for name in section_keys(text, root))
    elif root == "steps":
        yield from (Offer(name, "step", "") for name in step_names(text))
    elif root == "iter":
        names = re.findall(r"\biterator:\s*([A-Za-z_]\w*)", text)
        yield from (Offer(name, "name", "Of the iteration.") for name in dict.fromkeys(names))
    else:
        known = _result_keys(text, root)
        yield from (Offer(name, "name", f"Of the result of {root}.") for name in known)


def _result_keys(text: str, step: str) -> list[str]:
    """The keys of a step's result, if the step has an inline schema that lists them."""
    one = _step_called(step, text)
    tool = field(one, "tool")
    for holder in (one, *items(tool)[-1:], tool):
        schema = nodes.plain(field(field(holder, "output"), "schema"))
        if isinstance(shape := schemas.yielded(schema), Mapping):
            return list(shape)
    return []


def _step_called(name: str, text: str) -> nodes.Node | None:
    steps = items(field(read(text, Report()), "workflow"))
    return next((one for one in steps if nodes.text_of(field(one, "step")) == name), None)


def step_names(text: str) -> list[str]:
    """The names of the steps, in order, as far as the text shows them."""
    _, _, workflow = text.partition("workflow:")
    return list(dict.fromkeys(_STEP.findall(workflow)))


class StepPlace(NamedTuple):
    """Where a step has its name."""

    name: str
    line: int
    column: int


def step_at(text: str, line: int, column: int) -> StepPlace | None:
    """The step that the word at this place names; None if it names none."""
    word = _word_at(text, line, column)
    if word is None:
        return None
    place = place_of(text, line, word.end() + 1)
    if place.template is None and place.key not in STEP_KEYS:
        return None
    name = field(_step_called(word[0], text), "step")
    return None if name is None else StepPlace(word[0], name.place.line, name.place.column)


def section_keys(text: str, section: str) -> list[str]:
    """The keys of a root section, in block or flow style."""
    match = re.search(rf"^{section}:[ \t]*(.*)$", text, re.MULTILINE)
    if match is None:
        return []
    if match[1].startswith("{"):
        return re.findall(r"[{,]\s*([A-Za-z_]\w*)\s*:", match[1])
    found: list[str] = []
    width: int | None = None
    for line in text[match.end() :].splitlines()[1:]:
        if line.strip() and not line.startswith((" ", "\t")):
            break
        key = _KEY.match(line)
        if key is not None:
            width = len(key["indent"]) if width is None else width
            if len(key["indent"]) == width:
                found.append(key["key"])
    return found


# --- Explanations -------------------------------------------------------------------------------


def about(text: str, line: int, column: int, schema: Schema) -> AboutDocument | None:
    """What the word at this place means; None if unknown."""
    word = _word_at(text, line, column)
    if word is None:
        return None
    place = place_of(text, line, word.end() + 1)
    meaning = _meaning(text, place, word[0], word.string[word.end() :], schema)
    return AboutDocument(meaning, word[0], word.start() + 1) if meaning else None


def _word_at(text: str, line: int, column: int) -> re.Match[str] | None:
    """The word at this place, as a match in its line."""
    lines = text.splitlines()
    if not 1 <= line <= len(lines):
        return None
    words = _WORD.finditer(lines[line - 1])
    return next((one for one in words if one.start() < column <= one.end() + 1), None)


def _meaning(text: str, place: Place, word: str, behind: str, schema: Schema) -> str:
    if place.template is not None:
        for table in (FILTERS, TESTS, FUNCTIONS):
            if word in table:
                return f"`{word}`: {_doc(table, word)}"
        if word in ROOTS:
            return f"`{word}`: {ROOTS[word]}"
        return f"The result of step `{word}`." if word in step_names(text) else ""
    is_key = behind.lstrip().startswith(":") and (place.key is None or place.key != word)
    key = word if is_key else place.key
    if not is_key and place.key == "kind":
        summary = _kind_summary(schema, "kind", word)
        return f"`kind: {word}`: {summary}" if summary else ""
    if not is_key and place.key in STEP_KEYS and word in step_names(text):
        return f"Step `{word}`."
    for one in schemas_at(schema, place.path, place.siblings):
        part = one.get("properties", {}).get(key)
        if isinstance(part, dict) and (description := _description(schema, part)):
            return f"`{key}`: {description}"
    return ""


def _description(schema: Schema, part: Schema) -> str:
    found = str(part.get("description", ""))
    if not found and "$ref" in part:
        found = str(_target(schema, part["$ref"]).get("description", ""))
    return found


def _doc(table: Mapping[str, Any], name: str) -> str:
    """What a filter, test or function does, in a sentence: our own, or Jinja's."""
    theirs = JINJA_TESTS if table is TESTS else JINJA_FILTERS
    written = table[name].__doc__ or theirs[name].__doc__ or ""
    sentence = " ".join(written.partition("\n\n")[0].split()).partition(". ")[0]
    return re.sub(r":[a-z]+:", "", sentence).rstrip(".:") + "."
