"""The page about tests of playbooks: what it shows can be read, and it leaves nothing out."""

import re
from pathlib import Path

import pytest

from noetl.dsl.grammar import Field, Record, Shape
from noetl.trials.files import TRIAL_FILE, Answer, read_trials

PAGE = (Path(__file__).parent.parent.parent / "docs" / "testing-playbooks.md").read_text()
FENCED = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
SHOWN = [body for body in FENCED if not body.startswith("apiVersion")]


def keys_below(thing: object) -> set[str]:
    """Every key of every record that a shape is made of."""
    match thing:
        case Record():
            below = [keys_below(field) for field in thing.fields.values()]
            return set(thing.fields).union(*below)
        case Field():
            return keys_below(thing.shape)
        case Shape():
            return set().union(*map(keys_below, vars(thing).values()))
        case tuple():
            return set().union(*map(keys_below, thing))
    return set()


@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: shown.splitlines()[0])
def test_what_the_page_shows_can_be_read(shown):
    whole = shown if "tests:" in shown else f"playbook: x\ntests: [{{name: x}}]\n{shown}"

    assert read_trials(whole).problems == ()


def test_every_key_of_a_test_file_is_on_the_page():
    words = set(re.findall(r"\w+", PAGE))

    assert len(keys_below(TRIAL_FILE)) > 30
    assert keys_below(TRIAL_FILE) - words == set()


def test_what_stands_in_a_test_wins_over_what_all_share():
    found = read_trials(
        """
playbook: x
workload: {a: 1, b: 1}
stand_ins: {fetch: {result: 1}, store: {result: 1}}
tests: [{name: x, workload: {b: 2}, stand_ins: {fetch: [{result: 2}]}}]
"""
    )
    assert found.file is not None
    trial = found.file.whole(found.file.tests[0])

    assert trial.workload == {"a": 1, "b": 2}
    assert trial.stand_ins == {"fetch": (Answer(result=2),), "store": Answer(result=1)}


@pytest.mark.parametrize("text", ["", "- a", "tests"])
def test_what_is_no_mapping_is_said_to_be_no_test_file(text):
    [problem] = read_trials(text).problems

    assert problem.message == "a test file is a mapping that has `playbook` and `tests`."


VALUES = (
    *("", "1", "1.5", "-1", "true", "a", "1h", "always", "RUNNING", "a -> b", "'{{ 1 }}'"),
    *("[]", "[1]", "[a]", "[[a]]", "[{}]", "[{name: x}]", "{}", "{a: 1}", "{a: {}}", "{a: [{}]}"),
)
PLACES = (
    "{%s}",
    "{expect: {%s}}",
    "{signals: [{name: a, %s}]}",
    "{stand_ins: {a: {%s}}}",
    "{stand_ins: {a: [{error: {%s}}]}}",
)


@pytest.mark.parametrize("place", PLACES)
def test_whatever_is_written_anywhere_is_read_or_refused(place):
    for key in keys_below(TRIAL_FILE):
        for value in VALUES:
            test = (place % f"{key}: {value}").replace("{", "{name: x, ", 1)
            found = read_trials(f"playbook: x\ntests: [{test}]\n")
            assert (found.file is None) == bool(found.problems), test
