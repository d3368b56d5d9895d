"""Keychain entries whose secret a manager outside keeps, used by tasks of a whole system."""

from __future__ import annotations

import hashlib

import pytest

from noetl.model.events import TaskStarted
from tests.examples.system import on_bench, playbook
from tests.tools.secret_services import AWS, AZURE, GOOGLE, SECRET, VAULT
from tests.tools.secret_services import managers as managers

CREDENTIALS = {"vault": VAULT, "google": GOOGLE, "azure": AZURE, "aws": AWS}
FLOW = """
- step: start
  tool:
    kind: shell
    env: { S: "{{ keychain.shop%s }}" }
    cmd: printf %%s "$S" | sha256sum
"""


def run(managers, entry, flow=FLOW % ""):
    """Run with these entries; all managers' credentials are stored."""

    async def work(bench):
        for name, fields in CREDENTIALS.items():
            await bench.system.keys.put(name, "secret", fields)
        text = playbook(flow, keychain=entry.replace("URL", managers.url))
        done = await bench.run(text, {"name": "shop"})
        for path in bench.folder.rglob("*"):
            if path.is_file():
                assert SECRET.encode() not in path.read_bytes()
        return done

    return on_bench(work)


def digest_of(done):
    return done.result["stdout"].split()[0]


def expected(secret):
    return hashlib.sha256(secret.encode()).hexdigest()


@pytest.mark.parametrize(
    ("entry", "secret"),
    [
        ("provider: vault, path: kv/shop, key: api_key, auth: vault", f"{SECRET}-2"),
        (
            "provider: hashicorp, path: kv/shop, key: api_key, version: 1, auth: vault",
            f"{SECRET}-1",
        ),
        ("provider: google, project: p, auth: google", f"{SECRET}-latest"),
        ("provider: gcp, path: projects/x/secrets/shop, version: 3, auth: google", f"{SECRET}-3"),
        ("provider: azure, auth: azure", SECRET),
        ("provider: aws, region: eu-west-1, auth: aws", SECRET),
    ],
)
def test_a_manager_is_asked_when_the_secret_is_used(managers, entry, secret):
    done = run(managers, f"- {{ name: shop, kind: secret_manager, url: URL, {entry} }}")

    assert digest_of(done) == expected(secret)


@pytest.mark.parametrize("kind", ["secret_manager", "secrets"])
@pytest.mark.parametrize(
    ("manager", "path", "secret"),
    [
        ("provider: google, project: p, auth: google", "shop", f"{SECRET}-latest"),
        ("provider: azure, auth: azure", "shop", SECRET),
        ("provider: aws, region: eu-west-1, auth: aws", "shop", SECRET),
    ],
)
def test_map_reads_each_field_by_a_path_of_its_own(managers, kind, manager, path, secret):
    entry = (
        f"- {{ name: shop, kind: {kind}, url: URL, {manager},"
        f' map: {{ user: {path}, key: "{{{{ workload.name }}}}" }} }}'
    )

    assert digest_of(run(managers, entry, FLOW % ".user")) == expected(secret)
    assert digest_of(run(managers, entry, FLOW % ".key")) == expected(secret)


def test_a_path_of_map_that_is_not_there_is_named(managers):
    entry = (
        "- { name: shop, kind: secret_manager, provider: google, project: p, auth: google,"
        " url: URL, map: { user: shop, key: no-such-secret } }"
    )
    failed = run(managers, entry, FLOW % ".key")

    assert failed.document["status"] == "FAILED"
    assert "no-such-secret" in str(failed.error["message"])


def test_an_entry_may_be_written_with_the_workload_and_with_another_entry(managers):
    entry = (
        "- { name: door, kind: static, value: canary-vault-token }\n"
        "- { name: shop, kind: secret_manager, provider: vault, url: URL,"
        ' path: "kv/{{ workload.name }}", auth: { token: "{{ keychain.door }}" } }'
    )

    done = run(managers, entry, FLOW % ".api_key")

    assert digest_of(done) == expected(f"{SECRET}-2")


@pytest.mark.parametrize(
    ("entry", "kind", "said"),
    [
        ("provider: vault, path: kv/nobody, auth: vault", "not_found", "404"),
        ("provider: vault, path: kv/shop, key: gone, auth: vault", "not_found", '"gone"'),
        ("provider: vault, path: kv/shop, auth: azure", "auth", "403"),
    ],
)
def test_what_a_manager_refuses_is_the_error_of_the_task(managers, entry, kind, said):
    done = run(managers, f"- {{ name: shop, kind: secret_manager, url: URL, {entry} }}")

    assert done.error["kind"] == kind
    assert said in done.error["message"]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("provider: bitwarden", 'there is no secret manager "bitwarden"'),
        ("provider: vault, auth: stranger", 'there is no credential "stranger"'),
    ],
)
def test_what_cannot_be_asked_fails_before_the_first_step(managers, entry, said):
    done = run(managers, f"- {{ name: shop, kind: secret_manager, url: URL, {entry} }}")

    assert said in done.error["message"]
    assert done.of(TaskStarted) == []


def test_entries_that_need_each_other_are_named(managers):
    entry = (
        '- { name: shop, kind: static, value: "{{ keychain.door }}" }\n'
        '- { name: door, kind: static, value: "{{ keychain.shop }}" }'
    )

    assert "shop → door → shop" in run(managers, entry).error["message"]


@pytest.mark.parametrize(
    ("more", "asked"), [("", 3), (", ttl: 1h", 1), (", ttl: 1h, scope: global", 1), (", ttl: 0", 3)]
)
def test_a_secret_is_kept_as_long_as_its_entry_says(managers, more, asked):
    how = f"url: URL, provider: vault, path: kv/shop, auth: vault{more}"
    entry = f"- {{ name: shop, kind: secret_manager, {how} }}"
    flow = """
- step: start
  loop: { in: [1, 2, 3], iterator: n }
  tool: { kind: shell, env: { S: "{{ keychain.shop.api_key }}" }, cmd: test -n "$S" }
"""
    managers.seen.clear()

    done = run(managers, entry, flow)

    assert done.document["status"] == "COMPLETED", done.document["error"]
    assert len(managers.seen) == asked
