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
