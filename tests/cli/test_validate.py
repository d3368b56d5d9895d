"""`noetl validate`: every problem of every file, in a form that editors understand."""

from __future__ import annotations

import json
import re

import pytest

GOOD = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: good, path: good}
workflow:
  - step: start
    tool: {kind: noop}
"""
BAD = GOOD + "    next: [strat, ende]\n"
WARNED = GOOD + "  - step: lost\n    tool: {kind: noop}\n"
GNU = re.compile(r"(.+?):(\d+):(\d+): (?:(warning|info): )?(.+) \[([a-z-]+)\]")


@pytest.fixture
def write(tmp_path):
    def write(**files: str) -> None:
        for name, text in files.items():
            (tmp_path / f"{name}.yaml").write_text(text)

    return write


def test_a_good_playbook_exits_with_0_and_prints_nothing_on_stdout(noetl, write):
    write(good=GOOD)

    assert noetl("validate", "good.yaml") == (0, "", "noetl: 1 file, no errors, no warnings\n")


def test_all_problems_of_all_files_are_printed_one_line_each(noetl, write):
    write(good=GOOD, bad=BAD, worse="apiVersion: [\n")

    ran = noetl("validate", "good.yaml", "bad.yaml", "worse.yaml")
    found = [GNU.fullmatch(line) for line in ran.out.splitlines()]

    assert ran.code == 2
    assert all(found)
    assert [match[1] for match in found if match] == ["bad.yaml", "bad.yaml", "worse.yaml"]
    assert 'Did you mean "start"?' in ran.out
    assert ran.err == "noetl: 3 files, 3 errors, no warnings\n"


def test_a_warning_is_called_one_and_only_counts_when_strict(noetl, write):
    write(warned=WARNED)

    usual, strict = noetl("validate", "warned.yaml"), noetl("validate", "--strict", "warned.yaml")

    assert re.fullmatch(r"warned\.yaml:7:\d+: warning: .+ \[unreachable-step\]\n", usual.out)
    assert (usual.code, strict.code) == (0, 2)
    assert usual.out == strict.out


def test_json_is_one_document_and_nothing_else(noetl, write):
    write(good=GOOD, bad=BAD)

    ran = noetl("validate", "--json", "good.yaml", "bad.yaml", "missing.yaml")
    good, bad, missing = json.loads(ran.out)["files"]

    assert ran.code == 2
    assert good == {"file": "good.yaml", "valid": True, "problems": []}
    assert bad["valid"] is False
    assert set(bad["problems"][0]) == {"code", "severity", "message", "line", "column", "path"}
    assert bad["problems"][0]["line"] == 7
    assert [problem["code"] for problem in missing["problems"]] == ["unreadable-file"]


def test_strict_json_calls_a_warned_file_invalid(noetl, write):
    write(warned=WARNED)

    [usual] = json.loads(noetl("validate", "--json", "warned.yaml").out)["files"]
    [strict] = json.loads(noetl("validate", "--json", "--strict", "warned.yaml").out)["files"]

    assert (usual["valid"], strict["valid"]) == (True, False)


def test_stdin_is_a_file_too(noetl):
    good, bad = noetl("validate", "-", stdin=GOOD), noetl("validate", "-", stdin=BAD)

    assert (good.code, bad.code) == (0, 2)
    assert bad.out.startswith("<stdin>:7:")


def test_a_directory_is_searched_for_playbooks(noetl, write, tmp_path):
    write(good=GOOD, bad=BAD, other="services: {}\n")

    ran = noetl("validate", ".")

    assert ran.code == 2
    assert "bad.yaml:7:" in ran.out
    assert ran.err.startswith("noetl: 2 files, ")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "there is no such file"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_a_file_that_cannot_be_read_is_told_and_the_others_are_done(
    noetl, write, tmp_path, content, reason
):
    write(bad=BAD)
    if content is not None:
        (tmp_path / "odd.yaml").write_bytes(content)

    ran = noetl("validate", "odd.yaml", "bad.yaml")

    assert ran.code == 2
    assert f"noetl: odd.yaml: {reason}" in ran.err
    assert "bad.yaml:7:" in ran.out


def test_a_name_with_odd_bytes_is_printed_readably(noetl, tmp_path):
    with open(bytes(tmp_path) + b"/\xff\x1b.yaml", "w") as file:
        file.write(BAD)

    ran = noetl("validate", "--json", ".")

    assert json.loads(ran.out)["files"][0]["problems"]
    assert "\x1b" not in noetl("validate", ".").out


def test_a_terminal_shows_the_place_under_each_problem(on_terminal, uncoloured, write):
    write(bad=BAD)

    shown = on_terminal("validate", "bad.yaml")

    assert "\x1b[" in shown
    assert "7 │     next: [strat, ende]\n  │            ^^^^^\n" in uncoloured(shown)


@pytest.mark.parametrize("variable", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"LC_ALL": "POSIX"}])
def test_a_terminal_that_wants_it_plain_gets_the_same_as_a_pipe(
    on_terminal, noetl, write, variable
):
    write(bad=BAD)
    # Without this Python would use UTF-8 in the POSIX locale all the same.
    environment = variable | {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    assert on_terminal("validate", "bad.yaml", **environment) == (noetl("validate", "bad.yaml").out)


def test_a_bad_setting_is_told_by_name(noetl, write):
    write(good=GOOD)

    ran = noetl("validate", "good.yaml", NOETL_MAX_ATTEMPTS="lots")

    assert (ran.code, ran.out) == (2, "")
    assert 'noetl: NOETL_MAX_ATTEMPTS is "lots", but must be a whole number' in ran.err


def test_a_misspelt_setting_is_pointed_out_on_stderr(noetl, write):
    write(good=GOOD)

    ran = noetl("validate", "good.yaml", NOETL_MAX_ATTEMPT="3")

    assert ran.code == 0
    assert 'Did you mean "NOETL_MAX_ATTEMPTS"?' in ran.err


def test_an_operators_limit_reaches_the_compiler(noetl, write):
    asking = GOOD.replace(
        "tool: {kind: noop}",
        "tool:\n      kind: noop\n      spec:\n        policy:\n          rules:\n"
        "            - when: \"{{ outcome.status == 'error' }}\"\n"
        "              then: {do: retry, attempts: 50}\n"
        "            - else: {then: {do: fail}}",
    )
    write(asking=asking)

    free = noetl("validate", "asking.yaml")
    limited = noetl("validate", "asking.yaml", NOETL_MAX_ATTEMPTS="3")

    assert (free.code, free.out) == (0, "")
    assert "[limit-applied]" in limited.out


OLDER = GOOD.replace("tool: {kind: noop}", "tool: {kind: noop, timeout: 5}")
REMOVED = GOOD.replace("    tool:", "    when: '{{ workload.x }}'\n    tool:")
V1 = GOOD.replace("noetl.io/v2", "noetl.io/v1")


def test_a_document_of_another_program_is_not_called_an_older_dialect(noetl, write):
    text = GOOD.replace("noetl.io/v2", "argoproj.io/v1alpha1")
    write(argo=text)

    ran = noetl("validate", "argo.yaml")

    assert "a document of another program" in ran.out
    assert "migrate" not in ran.out + ran.err
    assert noetl("migrate", "argo.yaml").out == text


def test_a_slip_in_the_api_version_is_not_called_a_document_of_another_program(noetl, write):
    write(slip=GOOD.replace("noetl.io/v2", "notl.io/v2"))

    ran = noetl("validate", "slip.yaml")

    assert 'apiVersion is "notl.io/v2"; today it is noetl.io/v2. [' in ran.out


@pytest.mark.parametrize("text", [OLDER, REMOVED, V1], ids=["older form", "removed key", "version"])
def test_the_first_line_about_an_older_dialect_tells_of_migrate(noetl, write, text):
    write(older=text)

    ran = noetl("validate", "older.yaml")

    first = ran.err.splitlines()[0]
    assert first == (
        "noetl: older.yaml is written in an older dialect: `noetl migrate older.yaml` rewrites it."
    )
    assert all(GNU.fullmatch(line) for line in ran.out.splitlines())
    migrated = noetl("migrate", "older.yaml")
    write(today=migrated.out)
    assert noetl("validate", "today.yaml")[0] == 0


@pytest.mark.parametrize(
    "text",
    ["name: x\non: push\njobs: {}\n", "name: x\nsteps: [{name: one, command: echo 1}]\n"],
    ids=["of a program that is known", "of another one"],
)
def test_no_file_of_another_program_is_said_to_be_in_an_older_dialect(noetl, write, text):
    write(other=text)

    ran = noetl("validate", "other.yaml")

    assert ran.code == 2
    assert "migrate" not in ran.out + ran.err


def test_where_migrate_rewrites_only_a_part_it_is_said_so(noetl, write):
    write(older=OLDER.replace("kind: Playbook", "kind: Playbook\nspec: {shape: round}"))

    ran = noetl("validate", "older.yaml")

    assert ran.err.splitlines()[0] == (
        "noetl: a part of older.yaml is in an older dialect: `noetl migrate older.yaml` rewrites"
        " that part."
    )


def test_a_refused_run_of_an_older_dialect_tells_of_migrate_first(noetl, write):
    write(older=V1)

    ran = noetl("run", "older.yaml")

    assert ran.code == 2
    assert "`noetl migrate older.yaml`" in ran.err.splitlines()[0]


def test_what_migrate_cannot_help_with_is_not_sent_to_it(noetl, write):
    write(other=GOOD + "tasks: []\n")

    assert "migrate" not in noetl("validate", "other.yaml").err


@pytest.mark.parametrize(
    ("written", "remedy"),
    [
        ("workflow: [{step: start, tool: {kind: bash, command: ls}}]", "`kind: shell`"),
        ("workflow: [{step: start, tool: {kind: sh, cmd: ls}}]", "`kind: shell`"),
        ("workflow: [{step: start, tool: {kind: script, code: x}}]", "`kind: python`"),
        ("tasks: []", "`workflow`"),
        ("jobs: {}", "`workflow`"),
        ("inputs: {}", "`workload`"),
        ("spec: {}", "`executor.spec`"),
        ("keychain: [{name: k, kind: secret_manager, provider: google, source: adc}]", "`auth: N"),
        (
            "workflow: [{step: start, tool: {kind: duckdb, command: SELECT 1, auth: {type: gcs,"
            " source: adc}}}]",
            "`noetl credential set NAME`",
        ),
        (
            "workflow: [{step: start, tool: {kind: noop}, next: b}, {step: b, tool: {kind: noop,"
            " result: '{{ result.x }}'}}]",
            "that step's name",
        ),
        (
            "workflow: [{step: start, tool: {kind: noop, result: \"{{ token('k') }}\"}}]",
            "`{{ keychain.name }}`",
        ),
        ("workflow: [{step: start, tool: {kind: playbook}}]", "`path`"),
        (
            "workflow: [{step: start, tool: {kind: python, code: x = 1, libs: {a-b: json}}}]",
            '"a-b" is not a name for code',
        ),
        (
            "workflow: [{step: start, tool: {kind: python, code: x = 1, libs: {class: json}}}]",
            '"class" is not a name for code',
        ),
        (
            "workflow: [{step: start, tool: {kind: python, code: x = 1, libs: {j: 'no module'}}}]",
            "`package.module`",
        ),
    ],
)
def test_what_is_refused_names_its_replacement(noetl, write, written, remedy):
    key = written.partition(":")[0]
    head, _, workflow = GOOD.partition("workflow:")
    write(other=head + ("" if key == "workflow" else f"workflow:{workflow}") + written + "\n")

    ran = noetl("validate", "other.yaml")

    assert ran.code == 2
    assert remedy in ran.out


def test_a_file_of_tests_is_checked_as_such(noetl, write, tmp_path):
    write(good=GOOD, bad=BAD)
    right = "playbook: good.yaml\ntests: [{name: it runs, expect: {steps: [start]}}]\n"
    (tmp_path / "right.test.yaml").write_text(right)
    (tmp_path / "wrong.test.yaml").write_text(right.replace("expect", "expct"))
    (tmp_path / "broken.test.yaml").write_text(right.replace("good", "bad"))

    assert noetl("validate", "good.yaml", "right.test.yaml")[0] == 0
    code, out, _ = noetl("validate", "wrong.test.yaml")
    assert code == 2
    assert 'Did you mean "expect"?' in out
    code, out, _ = noetl("validate", "broken.test.yaml")
    assert code == 2
    assert "broken.test.yaml:1:1: its playbook, bad.yaml:7: " in out


def test_a_call_is_checked_against_the_playbook_in_the_folder_below_that_its_path_names(
    noetl, write, tmp_path
):
    (tmp_path / "lib").mkdir()
    inputs = "executor: {spec: {inputs: {count: {type: integer}}}}\n"
    child = GOOD.replace("path: good", "path: lib/child").replace("workflow:", inputs + "workflow:")
    (tmp_path / "lib" / "child.yaml").write_text(child)
    call = "{kind: playbook, path: lib/child, args: {count: many}}"
    write(calls=GOOD.replace("{kind: noop}", call))

    for names in (["calls.yaml"], ["."]):
        ran = noetl("validate", *names)

        assert ran.code == 2
        assert "[bad-call]" in ran.out
