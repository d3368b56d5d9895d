"""Bad documents of each kind: refused with all their problems, and nothing of them is kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.processes import Server, serving

GOOD = {
    "Schedule": "{playbook: t/p, every: 1h}",
    "Hook": "{verify: none, target: {playbook: t/p}}",
    "Consumer": "{source: {files: {url: 'file:///in'}}, target: {playbook: t/p}}",
    "Notification": "{on: failed, target: {playbook: t/p}}",
}
BAD = {
    "Schedule": ("{playbook: t/p, every: 1h, overlap: skp}", "bad-value"),
    "Hook": ("{verify: github, target: {playbook: t/p}}", "bad-value"),
    "Consumer": ("{source: {postgres: {auth: x, table: t}}, target: {}}", "missing-key"),
    "Notification": ("{on: [failed, late], target: {playbook: t/p}}", "missing-key"),
}
WRONG_USES = [
    ("Schedule", "{playbook: p, cron: '61 4 * * *'}", "4:27 bad-cron", "minute, hour"),
    ("Schedule", "{playbook: p, every: 15 minutes}", "4:28 bad-value", "5m"),
    (
        *("Schedule", "{playbook: p, every: 1h, timezone: Europe/Berln}"),
        *("4:42 unknown-timezone", '"Europe/Berlin"'),
    ),
    (
        *("Schedule", "{playbook: p, every: 1h, workload: {a: '{{ shedule.time }}'}}"),
        *("4:46 not-in-scope", '"schedule"'),
    ),
    ("Hook", "{target: {playbook: p}}", "4:7 missing-key", "`verify`"),
    ("Hook", "{verify: github, target: {playbook: p}}", "4:16 bad-value", "NAME_OF_A_CREDENTIAL"),
    (
        *("Hook", "{verify: none, when: '{{ body.ref }}', target: {playbook: p}}"),
        *("4:28 not-in-scope", "read `hook`"),
    ),
    ("Consumer", "{source: {kafka: {}}, target: {playbook: p}}", "4:17 unknown-key", "nats"),
    (
        *("Consumer", "{source: {files: {url: 'ftp://a'}}, target: {playbook: p}}"),
        *("4:24 bad-value", "s3://"),
    ),
    (
        *("Consumer", "{source: {nats: {url: u}, files: {url: u}}, target: {playbook: p}}"),
        *("4:16 bad-value", "one of nats"),
    ),
    (
        *("Consumer", "{source: {postgres: {auth: a, table: t}}, target: {playbook: p}}"),
        *("4:27 missing-key", "`mark`"),
    ),
    ("Notification", "{on: fails, target: {playbook: p}}", "4:12 bad-value", '"failed"'),
    ("Notification", "{on: late, target: {playbook: p}}", "4:8 missing-key", "30m"),
    ("Notification", "{on: failed, target: {signal: go}}", "4:29 unknown-key", "playbook"),
]
"""What people write, where and as what it is refused, and what they are told to write instead."""
PLURALS = {kind: f"{kind.lower()}s" for kind in GOOD}
NOT_A_MAPPING = ("[]", "text", "{}", "null")


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("dev")
    with serving(folder, kind="dev") as server:
        yield server


def text(kind: str, spec: str, path: str = "t/bad") -> str:
    head = f"apiVersion: noetl.io/v2\nkind: {kind}\nmetadata: {{name: bad, path: {path}}}\n"
    return f"{head}spec: {spec}\n"


def check_nothing_is_kept(dev: Server, kind: str) -> None:
    assert dev.ask("GET", f"/api/{PLURALS[kind]}/t/bad").status == 404
    assert dev.get(f"/api/{PLURALS[kind]}")[PLURALS[kind]] == []
    assert dev.ask("GET", "/api/catalog/t/bad").status == 404


@pytest.mark.parametrize("kind", GOOD)
def test_a_bad_document_is_refused_at_its_place_and_nothing_is_kept(dev: Server, kind: str):
    spec, code = BAD[kind]
    for written in (spec, *NOT_A_MAPPING):
        reply = dev.ask("POST", "/api/catalog/register", {"content": text(kind, written)})
        assert reply.status == 422, (written, reply.raw)
        problems = reply.json["error"]["details"]["problems"]
        assert all(one["line"] >= 1 and one["message"] for one in problems)
        if written == spec:
            assert code in [one["code"] for one in problems]
        check_nothing_is_kept(dev, kind)


@pytest.mark.parametrize(("kind", "spec", "where", "remedy"), WRONG_USES)
def test_what_people_write_wrongly_is_named_with_its_place_and_a_remedy(
    dev: Server, kind: str, spec: str, where: str, remedy: str
):
    reply = dev.ask("POST", "/api/catalog/register", {"content": text(kind, spec)})

    assert reply.status == 422, reply.raw
    problems = reply.json["error"]["details"]["problems"]
    found = {f"{one['line']}:{one['column']} {one['code']}": one["message"] for one in problems}
    assert remedy in found.get(where, ""), found
    check_nothing_is_kept(dev, kind)


LACKING = {
    "Schedule": "{playbook: t/none, every: 1h}",
    "Hook": "{verify: none, target: {playbook: t/none}}",
    "Consumer": "{source: {files: {url: 'file:///in'}}, target: {playbook: t/none}}",
    "Notification": "{on: failed, target: {playbook: noetl/notify/slak}}",
}


@pytest.mark.parametrize("kind", LACKING)
def test_what_can_start_nothing_yet_is_kept_and_says_so(dev: Server, kind: str):
    path = f"t/lacking_{kind.lower()}"
    answer = dev.post("/api/catalog/register", {"content": text(kind, LACKING[kind], path)})
    assert "no playbook" in answer["lacks"]
    dev.ask("DELETE", f"/api/{PLURALS[kind]}/{path}")

    # One that is gone is not what somebody means.
    missing = dev.ask("GET", f"/api/{PLURALS[kind]}/{path}s")
    assert "Did you mean" not in missing.json["error"]["message"]


def test_a_version_that_is_not_there_and_a_schedule_that_is_never_due_are_named(dev: Server):
    head = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p, path: t/old}\n"
    playbook = f"{head}workflow: [{{step: start, tool: {{kind: noop}}}}]\n"
    dev.post("/api/catalog/register", {"content": playbook})
    for number, (spec, said) in enumerate(
        (
            ("{playbook: t/old, every: 1h}", ""),
            (
                "{playbook: {path: t/old, version: 9}, every: 1h}",
                "has no version 9; its newest is 1",
            ),
            ("{playbook: t/old, every: 1h, end: 2020-01-01}", "never due"),
        )
    ):
        path = f"t/due_{number}"
        answer = dev.post("/api/catalog/register", {"content": text("Schedule", spec, path)})
        assert said in answer["lacks"]
        assert bool(said) == bool(answer["lacks"])
        dev.ask("DELETE", f"/api/schedules/{path}")


@pytest.mark.parametrize("kind", GOOD)
def test_one_bad_document_among_good_ones_keeps_all_of_them_out(dev: Server, kind: str):
    texts = [text(kind, GOOD[kind], "t/good"), text(kind, BAD[kind][0])]
    body = {"resources": [{"content": one} for one in texts]}
    reply = dev.ask("POST", "/api/catalog/register/batch", body)

    assert reply.status == 422, reply.raw
    assert dev.ask("GET", "/api/catalog/t/good").status == 404
    check_nothing_is_kept(dev, kind)


@pytest.mark.parametrize("kind", GOOD)
def test_the_path_of_another_kind_is_refused_and_stays_what_it_is(dev: Server, kind: str):
    other = "Hook" if kind != "Hook" else "Schedule"
    path = f"t/taken_by_{other.lower()}_not_{kind.lower()}"
    dev.post("/api/catalog/register", {"content": text(other, GOOD[other], path)})
    reply = dev.ask("POST", "/api/catalog/register", {"content": text(kind, GOOD[kind], path)})

    assert reply.status == 409, reply.raw
    assert dev.ask("GET", f"/api/{PLURALS[kind]}/{path}").status == 404
    assert dev.ask("GET", f"/api/{PLURALS[other]}/{path}").status == 200
    assert dev.ask("DELETE", f"/api/{PLURALS[other]}/{path}").status == 200
