"""Which secrets a playbook needs, wherever it names them."""

from __future__ import annotations

import pytest

from noetl.cli.views.credentials import credentials_of
from noetl.model.net import Block, Cursor, EventRule, KeychainEntry, Loop, Needs, Rule, Run
from tests.cli.nets import net, step, task


def names(**more):
    return [need.name for need in credentials_of(net(step("a", **more)))]


@pytest.mark.parametrize(
    "config",
    [
        {"auth": "k"},
        {"auth": {"type": "bearer", "credential": "k"}},
        {"auth": "{{ keychain.k }}"},
        {"url": "https://x/{{ keychain['k'].token }}"},
        {"source": {"kind": "postgres", "auth": "k"}},
        {"attach": {"other": {"auth": "k"}}},
    ],
)
def test_a_credential_is_found_wherever_a_tool_names_it(config):
    assert names(tasks=(task("t", "http", config=config),)) == ["k"]


def test_the_authors_own_data_is_not_searched_for_credentials():
    assert names(tasks=(task("t", "http", config={"json": {"auth": "k"}}),)) == []


def test_hooks_sinks_rules_cursors_and_the_secrets_tool_count_too():
    used = task("t", "postgres", config={"auth": "k"})
    rule = EventRule(label="r", actions=(Run(task=used),))
    cursor = Cursor(kind="postgres", auth="k", claim="…")
    reading = task("s", "secrets", config={"secret": "k"})

    assert names(tasks=(task("x", before=(used,)),)) == ["k"]
    assert names(sink=used) == ["k"]
    assert names(rules=(rule,)) == ["k"]
    assert names(tasks=(task("x", rules=(Rule(label="r", actions=(Run(task=used),)),)),)) == ["k"]
    assert names(loop=Loop(iterator="i", cursor=cursor)) == ["k"]
    assert names(tasks=(reading,)) == ["k"]
    assert names(needs=Needs(keychain=("k", "*"))) == ["k"]


def test_a_variable_of_the_environment_is_no_credential():
    reading = task("s", "secrets", config={"secret": "HOME", "provider": "env"})

    assert names(tasks=(reading,)) == []


def test_what_is_declared_but_used_by_nobody_is_still_needed():
    [need] = credentials_of(net(step("a"), keychain=(KeychainEntry(name="k", kind="static"),)))

    assert (need.name, need.kind, need.declared, need.used_by) == ("k", "static", True, ())


def test_a_workbook_entry_is_named_as_the_user():
    block = Block(name="load", tasks=(task("t", "postgres", config={"auth": "k"}),))

    [need] = credentials_of(net(step("a"), workbook=(block,)))

    assert need.used_by == ("load",)
