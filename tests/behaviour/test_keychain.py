"""The value of a keychain entry, and the page on which every kind of entry is shown."""

from __future__ import annotations

import hashlib
import re

import pytest

from noetl import configured
from noetl.dsl.playbook import KEYCHAIN_KINDS, WrittenSecret
from noetl.settings import Settings
from tests.examples.system import ROOT, Bench, Run, on_bench, playbook
from tests.tools.web import serving

PAGE = (ROOT / "docs" / "keychain.md").read_text()
KEPT = {
    "own": {"token": "t-0123456789"},
    "typed": {"type": "bearer", "token": "t-0123456789", "region": "eu"},
    "door": {"username": "ada", "password": "p-0123456789"},
    "several": {"a": "1-0123456789", "b": "2-0123456789"},
}


def entry_seen(entry: str, expression: str = "keychain.entry") -> object:
    """What a tool is given for an expression: its digest, because the value itself is masked."""

    async def work(bench: Bench) -> Run:
        for name, fields in KEPT.items():
            await bench.system.keys.put(name, "any", fields)
        digest = "hashlib.sha256(str(x).encode()).hexdigest()"
        code = f"import hashlib; result = [type(x).__name__, {digest}]"
        flow = (
            f'- {{step: start, tool: {{kind: python, args: {{x: "{{{{ {expression} }}}}"}},'
            f' code: "{code}"}}}}'
        )
        return await bench.run(playbook(flow, keychain=entry))

    run = on_bench(work)
    assert run.document["status"] == "COMPLETED", run.document["error"]
    return run.document["result"]


def as_given(value: object) -> list[str]:
    return [type(value).__name__, hashlib.sha256(str(value).encode()).hexdigest()]


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("- {name: entry, kind: bearer, credential: own}", "t-0123456789"),
        ("- {name: entry, kind: bearer, token: written-0123456789}", "written-0123456789"),
        ("- {name: entry, kind: basic, credential: door}", "p-0123456789"),
        ("- {name: entry, kind: credential, credential: own}", "t-0123456789"),
        ("- {name: entry, kind: credential, credential: typed}", "t-0123456789"),
        ("- {name: entry, kind: credential, credential: several, key: b}", "2-0123456789"),
        ("- {name: entry, kind: static, value: v-0123456789}", "v-0123456789"),
        ("- {name: entry, kind: credential, credential: several}", KEPT["several"]),
    ],
)
def test_an_entry_with_one_secret_is_that_secret(entry, value):
    assert entry_seen(entry) == as_given(value)


def test_the_fields_of_an_entry_can_be_read_as_before():
    entry = "- {name: entry, kind: basic, credential: door}"

    assert entry_seen(entry, "keychain.entry.username") == as_given("ada")


@pytest.mark.parametrize(
    ("entry", "header"),
    [
        ("- {name: entry, kind: bearer, credential: own}", "Bearer t-0123456789"),
        ("- {name: entry, kind: basic, credential: door}", "Basic YWRhOnAtMDEyMzQ1Njc4OQ=="),
    ],
)
@pytest.mark.parametrize("written", ["entry", '"{{ keychain.entry }}"'])
def test_auth_takes_the_name_of_an_entry_and_the_entry_itself(entry, header, written):
    with serving() as web:

        async def work(bench: Bench) -> Run:
            for name, fields in KEPT.items():
                await bench.system.keys.put(name, "any", fields)
            flow = (
                f"- {{step: start, tool: {{kind: http, url: '{web.url}/echo', auth: {written}}}}}"
            )
            return await bench.run(playbook(flow, keychain=entry))

        run = on_bench(work)

        assert run.document["status"] == "COMPLETED", run.document["error"]
        assert [seen["headers"]["authorization"] for seen in web.seen] == [header]


# --- The page ----------------------------------------------------------------------------------

_SECTION = re.compile(r"^## (\w+)$.*?^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXAMPLES = dict(_SECTION.findall(PAGE))
STORED = re.compile(r"^# noetl credential set (\w+)((?: \w+=\S+)+)$", re.MULTILINE)
ELSEWHERE = {"postgres_credential", "secret_manager"}
"""They need a database or a manager outside; tests of their own ask real ones."""


@pytest.mark.parametrize("kind", KEYCHAIN_KINDS)
def test_every_kind_is_on_the_page(kind):
    assert kind in EXAMPLES or kind == "secrets"
    assert f"`{kind}`" in PAGE


@pytest.mark.parametrize(
    "field", sorted(key for key, field in WrittenSecret.declared.items() if not field.older)
)
def test_every_field_is_on_the_page(field):
    assert f"`{field}`" in PAGE


@pytest.mark.parametrize("kind", EXAMPLES)
def test_an_example_of_the_page_compiles_without_a_remark(kind):
    compiled = configured.compiler(Settings.from_environment({}))(EXAMPLES[kind])

    assert [str(problem.message) for problem in compiled.problems] == []
    assert [entry.kind for entry in compiled.unwrap().keychain].count(kind) >= 1


@pytest.mark.parametrize("kind", sorted(EXAMPLES.keys() - ELSEWHERE))
def test_an_example_of_the_page_runs(kind, tmp_path, monkeypatch):
    (tmp_path / "shop-token").write_text("t-123\n")
    monkeypatch.setenv("SHOP_TOKEN", "t-123")
    with serving() as web:
        text = EXAMPLES[kind].replace("https://api.example.com", web.url)

        async def work(bench: Bench) -> Run:
            for name, fields in STORED.findall(text):
                data = dict(field.split("=", 1) for field in fields.split())
                await bench.system.keys.put(name, "any", data)
            return await bench.run(text)

        run = on_bench(work, env_secrets=("SHOP_*",), secret_files=str(tmp_path))

    assert run.document["status"] == "COMPLETED", run.document["error"]
    assert web.seen
