"""Documents of other kinds than playbooks: every problem with its place, and one description."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from noetl.control.zones import SystemZones
from noetl.dsl import Compiled, compile_text
from noetl.dsl.grammar import Record, Shape
from noetl.dsl.triggers import KINDS, PRESETS, compile_document, trigger_schema
from noetl.model import triggers
from noetl.model.triggers import Debounce, Hook, PlaybookRef, Schedule, SignalTarget, StartTarget
from noetl.rewrite.fmt import format_text, read_data
from noetl.tools.registry import tools

TOOLS = tools()
ROOT = Path(__file__).parent.parent.parent
EXAMPLES = sorted((ROOT / "examples" / "triggers").glob("*.yaml"))
PAGE = "".join((ROOT / "docs" / name).read_text() for name in ("triggers.md", "schemas.md"))
HEAD = "apiVersion: noetl.io/v2\nkind: Schedule\nmetadata: {name: s, path: t/s}\n"


def compiled(spec: str) -> Compiled:
    text = spec if spec.startswith("apiVersion") else f"{HEAD}spec:\n  playbook: t/p\n{spec}"
    return compile_document(text, tools=TOOLS, zones=SystemZones())


def schedule(spec: str) -> Schedule:
    found = compiled(spec)
    assert isinstance(found.trigger, Schedule), found.problems
    return found.trigger


def problems(spec: str) -> list[str]:
    return [f"{one.line}:{one.column} {one.code}" for one in compiled(spec).problems]


BAD = {
    "  cron: 61 * * * *\n": "6:9 bad-cron",
    "  cron: 0 0 30 2 *\n": "6:9 bad-cron",
    '  cron: "@fortnightly"\n': "6:9 bad-cron",
    "  cron: [0 0 * * *, 5]\n": "6:21 wrong-type",
    "  cron: []\n": "6:9 bad-value",
    "  every: 100ms\n": "6:10 bad-value",
    "  every: fast\n": "6:10 bad-value",
    "  every: 1h\n  cron: 0 0 * * *\n": "6:3 conflicting-keys",
    "  timezone: UTC\n": "5:3 missing-key",
    "  every: 1h\n  timezone: Europe/Berln\n": "7:13 unknown-timezone",
    "  every: 1h\n  overlap: skp\n": "7:12 bad-value",
    "  every: 1h\n  start: tomorrow\n": "7:10 bad-value",
    "  every: 1h\n  start: 2026-02-01\n  end: 2026-01-01\n": "8:3 bad-value",
    "  every: 1h\n  jiter: 5m\n": "7:3 unknown-key",
    "  every: 1h\n  interval: 5m\n": "7:3 removed-key",
    "  every: 1h\n  pause_on_failure: often\n": "7:21 wrong-type",
    '  every: 1h\n  workload: {x: "{{ ctx.a }}"}\n': "7:17 not-in-scope",
    '  every: 1h\n  workload: {x: "{{ schedule. }}"}\n': "7:17 template-syntax",
    '  every: 1h\n  workload: {x: "{{ 1 | nope }}"}\n': "7:17 unknown-filter",
    "  every: 1h\n  workload: 5\n": "7:13 wrong-type",
}


@pytest.mark.parametrize("spec", BAD)
def test_a_mistake_is_refused_at_its_place(spec: str):
    assert problems(spec) == [BAD[spec]]
    assert not compiled(spec).is_valid


WARNED = {
    '  every: 1h\n  workload: {x: "{{ schedule.tiem }}"}\n': "7:17 undefined-key",
    "  cron: 30 2 * * *\n  timezone: Europe/Berlin\n": "6:9 time-in-gap",
    "  cron: 15 2 * * *\n  timezone: Australia/Lord_Howe\n": "6:9 time-in-gap",
    "  cron: 0 0 * * *\n  offset: 5m\n": "7:3 hint-ignored",
    "  every: 1h\n  offset: 2h\n": "7:3 limit-applied",
    "  every: 1h\n  offset: 1h\n": "7:3 limit-applied",
    "  every: 1h\n  jitter: 2h\n": "7:3 limit-applied",
}


@pytest.mark.parametrize("spec", WARNED)
def test_what_is_probably_not_meant_is_a_warning(spec: str):
    assert problems(spec) == [WARNED[spec]]
    assert compiled(spec).is_valid


@pytest.mark.parametrize(
    "spec",
    [
        "  cron: 30 2 * * *\n  timezone: Asia/Tokyo\n",
        "  cron: 30 4 * * *\n  timezone: Europe/Berlin\n",
        "  cron: '*/30 * * * *'\n  timezone: Europe/Berlin\n",
        "  cron: 30 2 * 6 *\n  timezone: Europe/Berlin\n",
    ],
)
def test_a_time_that_no_gap_touches_is_no_warning(spec: str):
    assert problems(spec) == []


@pytest.mark.parametrize("spec", ["offset: 59m", "jitter: 1h", "offset: 1m\n  jitter: 5m"])
def test_an_offset_and_a_jitter_within_the_interval_are_no_warning(spec: str):
    assert problems(f"  every: 1h\n  {spec}\n") == []


STARTS = {
    "Schedule": "  playbook: %s\n  every: 1h\n",
    "Hook": "  verify: none\n  target: {playbook: %s}\n",
    "Consumer": "  source: {files: {url: 'file:///x'}}\n  target: {playbook: %s}\n",
    "Notification": "  on: failed\n  target: {playbook: {path: %s}}\n",
}


@pytest.mark.parametrize(
    ("kind", "place"),
    [("Schedule", "5:13"), ("Hook", "6:22"), ("Consumer", "6:22"), ("Notification", "6:29")],
)
def test_what_starts_a_playbook_names_it_by_its_path(kind: str, place: str):
    text = f"apiVersion: noetl.io/v2\nkind: {kind}\nmetadata: {{name: s, path: t/s}}\nspec:\n"
    text += STARTS[kind]

    assert problems(text % "t/p") == []
    assert problems(text % "t/s") == [f"{place} bad-value"]
    assert problems(text % "t/a.yaml") == [f"{place} playbook-is-a-file"]
    assert compiled(text % "t/a.yaml").is_valid


def test_all_problems_are_reported_at_once_with_what_was_probably_meant():
    text = HEAD.replace("t/s", "t/s, lables: {}") + "spec: {playbok: t/p, evry: 1h}\n"
    found = [str(one) for one in compiled(text).problems]

    assert any('Did you mean "playbook"?' in one for one in found)
    assert any('Did you mean "every"?' in one for one in found)
    assert any("needs `cron` or `every`" in one for one in found)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (HEAD, "missing-key"),
        (
            "apiVersion: noetl.io/v2\nkind: Schedule\nspec: {playbook: p, every: 1h}\n",
            "missing-key",
        ),
        (HEAD.replace("v2", "v1") + "spec: {playbook: p, every: 1h}\n", "unsupported-version"),
        (HEAD.replace("Schedule", "Schedul") + "spec: {}\n", "wrong-kind"),
        (HEAD + "spec: [1]\n", "wrong-type"),
        (HEAD + "spec: {playbook: {path: p, versoin: 2}, every: 1h}\n", "unknown-key"),
        ("kind: [Schedule\n", "yaml-syntax"),
    ],
)
def test_a_document_that_is_none_says_why(text: str, code: str):
    found = compile_document(text, tools=TOOLS, zones=SystemZones())

    assert code in {one.code for one in found.problems}
    assert not found.is_valid


def test_a_schedule_is_no_playbook():
    [found] = compile_text(HEAD + "spec: {}\n", tools=TOOLS).problems

    assert "`noetl register` puts it to work" in found.message


def test_what_is_written_is_what_is_built():
    found = schedule(
        "  cron: ['0  6 * * *', '@daily']\n  timezone: Europe/Berlin\n  start: 2026-06-01T08:00\n"
        "  end: 2026-07-01T00:00:00Z\n  jitter: 1m30s\n  overlap: buffer_one\n  catchup_window: 0\n"
        "  pause_on_failure: true\n  workload: {b: 1, a: '{{ schedule.time }}'}\n"
    )

    assert found == Schedule(
        name="s",
        path="t/s",
        playbook=PlaybookRef(path="t/p"),
        workload={"a": "{{ schedule.time }}", "b": 1},
        cron=("0 6 * * *", "@daily"),
        timezone="Europe/Berlin",
        start=1780293600.0,
        end=1782864000.0,
        jitter=90.0,
        overlap="buffer_one",
        catchup_window=0.0,
        pause_on_failure=True,
    )
    assert triggers.decode(triggers.encode(found)) == found


def test_values_keep_the_order_in_which_they_are_written():
    assert list(schedule("  every: 1h\n  workload: {b: 1, a: 2}\n").workload) == ["b", "a"]


def test_another_spelling_is_the_same_document():
    one = compiled("  every: 1h\n  workload: {a: 1, b: 2}\n")
    other = compiled("  workload:\n    b: 2\n    a: 1\n  every: 3600\n  # said otherwise\n")

    assert one.digest == other.digest


SPELT_OUT = {
    "Schedule": "{playbook: t/p, cron: '@daily', overlap: skip, catchup_window: 1h, jitter: 0s}",
    "Hook": "{verify: {hmac: {secret: s, header: X, algorithm: sha256, encoding: hex,"
    " tolerance: 5m}}, target: {playbook: t/p}}",
    "Consumer": "{source: {files: {url: 'file:///x', pattern: '*', every: 5s}}, format: json,"
    " max_running: 100, target: {playbook: t/p}}",
    "Notification": "{on: failed, window: 1h, target: {playbook: t/p}}",
}


@pytest.mark.parametrize("kind", SPELT_OUT)
def test_a_document_that_spells_out_defaults_has_one_digest_wherever_it_is_read(kind: str):
    head = f"apiVersion: noetl.io/v2\nkind: {kind}\nmetadata: {{name: n, path: a/n}}\n"
    found = compile_document(f"{head}spec: {SPELT_OUT[kind]}\n", tools={})
    assert found.trigger is not None, found.problems

    # As a server gets it from the process that compiles.
    elsewhere = msgspec.json.decode(msgspec.json.encode(found.trigger), type=triggers.Trigger)
    assert triggers.digest(elsewhere) == found.digest


# --- Hooks -------------------------------------------------------------------------------------

HOOK_HEAD = "apiVersion: noetl.io/v2\nkind: Hook\nmetadata: {name: h, path: t/h}\nspec:\n"
TO = "  target: {playbook: t/p}\n"
SIGNED = "  verify: {hmac: {secret: s, header: X, signed:"
BAD_HOOKS = {
    TO: "5:3 missing-key",
    f"  verify: github\n{TO}": "5:11 bad-value",
    f"  verify: gihub\n{TO}": "5:11 bad-value",
    f"  verify: {{gihub: {{secret: s}}}}\n{TO}": "5:12 unknown-key",
    f"  verify: {{github: {{}}}}\n{TO}": "5:20 missing-key",
    f"  verify: {{}}\n{TO}": "5:11 bad-value",
    f"  verify: {{github: {{secret: s}}, token: {{secret: s}}}}\n{TO}": "5:11 bad-value",
    f"  verify: {{hmac: {{secret: s}}}}\n{TO}": "5:18 missing-key",
    f"  verify: {{hmac: {{secret: s, header: X, signed: 'fixed'}}}}\n{TO}": "5:49 bad-value",
    f"{SIGNED} '{{bdy}}{{body}}'}}}}\n{TO}": "5:49 bad-value",
    f"{SIGNED} '{{id}}{{body}}'}}}}\n{TO}": "5:49 missing-key",
    f"  verify: {{hmac: {{secret: s, header: X, timestamp: T}}}}\n{TO}": "5:18 bad-value",
    "  verify: none\n": "5:3 missing-key",
    "  verify: none\n  playbook: t/p\n": "6:3 unknown-key",
    "  verify: none\n  target: {}\n": "6:11 missing-key",
    "  verify: none\n  target: {signal: go, wokload: {}}\n": "6:24 unknown-key",
    f"  verify: none\n{TO}  wait: soon\n": "7:9 bad-value",
    f"  verify: none\n{TO}  debounce: {{key: a}}\n": "7:13 missing-key",
    f"  verify: none\n{TO}  when: '{{{{ workload.x }}}}'\n": "7:9 not-in-scope",
    "  verify: none\n  target: {playbook: p, workload: {a: '{{ ctx.b }}'}}\n": "6:39 not-in-scope",
    "  verify: none\n  target: {signal: go, match: '{{ wrkload.b }}'}\n": "6:31 not-in-scope",
    "  verify: none\n  target: {signal: go, match: }\n": "6:31 wrong-type",
    "  verify: none\n  target: {signal: go, labels: team}\n": "6:32 wrong-type",
}


@pytest.mark.parametrize("spec", BAD_HOOKS)
def test_a_mistake_in_a_hook_is_refused_at_its_place(spec: str):
    assert problems(HOOK_HEAD + spec) == [BAD_HOOKS[spec]]
    assert not compiled(HOOK_HEAD + spec).is_valid


def test_a_hook_that_waits_for_too_long_is_told_how_long_it_may():
    spec = f"{HOOK_HEAD}  verify: none\n{TO}  wait: %s\n"

    assert problems(spec % "60s") == []
    assert problems(spec % "61s") == ["7:3 limit-applied"]
    assert compiled(spec % "61s").is_valid


def test_a_way_to_verify_without_its_options_is_refused_with_what_to_write():
    found = compiled(f"{HOOK_HEAD}  verify: {{token: null}}\n  target: {{playbook: t/p}}\n")

    assert not found.is_valid
    [problem] = found.problems
    assert problem.code == "wrong-type"
    assert problem.message.endswith("must be a mapping, not empty. Write `{secret: …}`.")


def test_a_value_in_place_of_a_mapping_is_told_the_mapping_to_write():
    [problem] = compiled(f"{HOOK_HEAD}  verify: none\n{TO}  debounce: 5s\n").problems

    assert problem.code == "wrong-type"
    assert "Write `{wait: 5s}`." in problem.message


@pytest.mark.parametrize(
    ("kind", "spec", "digest"),
    [
        ("Hook", "{verify: none, target: {playbook: a/b}}", "ae67ab04d750180f"),
        (
            "Schedule",
            "{playbook: {path: a/b, version: 2}, every: 5m, offset: 7m}",
            "283bb1c7f5050179",
        ),
    ],
)
def test_a_document_keeps_the_digest_that_it_was_registered_with(kind, spec, digest):
    head = f"apiVersion: noetl.io/v2\nkind: {kind}\nmetadata: {{name: n, path: a/n}}\n"
    found = compile_document(f"{head}spec: {spec}\n", tools={})

    assert found.digest.startswith(digest)


@pytest.mark.parametrize(
    ("written", "when", "match"),
    [("false", False, "{{ false }}"), ("0", False, "{{ false }}"), ("7", True, "")],
)
def test_a_condition_that_is_no_template_is_as_true_as_its_value(written, when, match):
    found = compiled(
        f"{HOOK_HEAD}  verify: none\n  when: {written}\n"
        f"  target: {{signal: go, match: {written}}}\n"
    ).trigger

    assert isinstance(found, Hook)
    assert isinstance(found.target, SignalTarget)
    assert (found.when, found.target.match) == (when, match)


def test_a_hook_is_what_is_written():
    found = compiled(
        f"{HOOK_HEAD}  verify: {{slack: {{secret: [a, b], tolerance: 1m}}}}\n"
        "  target: {playbook: {path: t/p, version: 3}, workload: {a: '{{ hook.body }}'}}\n"
        "  when: '{{ hook.body.x }}'\n  wait: 5s\n"
        "  debounce: {key: '{{ hook.query.k }}', wait: 1s, max_wait: 1m}\n"
    )

    assert found.problems == ()
    assert found.trigger == Hook(
        name="h",
        path="t/h",
        verify=msgspec.structs.replace(PRESETS["slack"], secrets=("a", "b"), tolerance=60.0),
        target=StartTarget(
            playbook=PlaybookRef(path="t/p", version=3), workload={"a": "{{ hook.body }}"}
        ),
        when="{{ hook.body.x }}",
        wait=5.0,
        debounce=Debounce(key="{{ hook.query.k }}", wait=1.0, max_wait=60.0),
    )
    assert triggers.decode(triggers.encode(found.trigger)) == found.trigger


# --- Of all kinds ------------------------------------------------------------------------------

TO_SIGNAL = "  target: {signal: go, match: }\n"


@pytest.mark.parametrize(
    ("kind", "spec", "problem"),
    [
        ("Consumer", "  source: {files: {url: 'file:///x'}}\n" + TO_SIGNAL, "6:31 wrong-type"),
        ("Consumer", f"  source: {{nats: }}\n{TO}", "5:18 wrong-type"),
        ("Notification", f"  on: failed\n  labels: team\n{TO}", "6:11 wrong-type"),
    ],
)
def test_a_mistake_in_another_kind_is_refused_at_its_place(kind: str, spec: str, problem: str):
    assert problems(HOOK_HEAD.replace("Hook", kind) + spec) == [problem]


def with_other_values(data: Any, known: set[str], root: Any) -> Iterator[str]:
    """The document with another value for each of the keys that it has, or could have."""
    if isinstance(data, list):
        for item in data:
            yield from with_other_values(item, known, root)
    if not isinstance(data, dict):
        return
    for below in list(data.values()):
        yield from with_other_values(below, known, root)
    for key in sorted({*data, *known}):
        as_it_was = dict(data)
        for value in ("x", 7, ["x"], True, None, {}, {"x": 1}, "{{ x }}"):
            data[key] = value
            yield msgspec.json.encode(root).decode()
        data.clear()
        data.update(as_it_was)


@pytest.mark.parametrize("kind", KINDS)
def test_values_of_the_wrong_type_are_answered(kind: str):
    head = {"apiVersion": "noetl.io/v2", "kind": kind, "metadata": {"name": "n"}}
    found = [read_data(path.read_text()) for path in EXAMPLES]
    documents = [one for one in found if one["kind"] == kind] or [head | {"spec": {}}]
    known = set(KINDS[kind].spec.fields) | {"labels", "match", "workload", "path"}

    for document in documents:
        for text in with_other_values(document, known, document):
            answer = compile_document(text, tools=TOOLS, zones=SystemZones())
            assert (answer.trigger or answer.net) or answer.problems, text


# --- Schema, format and page -------------------------------------------------------------------


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_has_no_problem_fits_its_schema_and_is_formatted(path: Path):
    text = path.read_text()
    found = compile_document(text, tools=TOOLS, zones=SystemZones())

    assert found.problems == ()
    assert found.trigger is not None
    assert (found.trigger.name, found.trigger.path) == (path.stem, f"examples/triggers/{path.stem}")
    assert format_text(text) == text
    jsonschema.validate(read_data(text), trigger_schema(found.trigger.kind))
    index = (ROOT / "examples" / "README.md").read_text()
    assert f"[{path.name}](triggers/{path.name})" in index


def test_each_kind_has_two_examples():
    kinds = [read_data(path.read_text())["kind"] for path in EXAMPLES]

    assert all(kinds.count(kind) >= 2 for kind in KINDS if kind != "Schema")


SCHEMA_CANNOT = {"bad-cron", "conflicting-keys", "unknown-timezone", "not-in-scope"}
"""What needs to see more than one piece, or to know more than a form."""


@pytest.mark.parametrize("spec", BAD)
def test_the_schema_refuses_what_has_the_wrong_form(spec: str):
    code = BAD[spec].split()[1]
    if code in SCHEMA_CANNOT or code.startswith(("template", "unknown-filter")):
        return
    if "start" in spec or "100ms" in spec or code == "missing-key":
        return  # a moment is any text to a schema, and which keys go together is said once
    validator = jsonschema.Draft7Validator(trigger_schema("Schedule"))

    assert not validator.is_valid(read_data(f"{HEAD}spec:\n  playbook: t/p\n{spec}"))


def keys_of(shape: Shape) -> list[str]:
    assert isinstance(shape, Record)
    return list(shape.fields)


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_of_a_kind_is_on_its_page(kind: str):
    assert [key for key in keys_of(KINDS[kind].spec) if f"`{key}`" not in PAGE] == []


@pytest.mark.parametrize("kind", KINDS)
def test_what_templates_may_read_is_on_its_page(kind: str):
    names: Any = KINDS[kind].names
    assert [key for keys in names.values() for key in keys if f"`{key}`" not in PAGE] == []
