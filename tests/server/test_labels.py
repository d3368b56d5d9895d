"""Labels of executions: from the playbook, from whoever starts one, from the caller."""

from __future__ import annotations

import pytest

from noetl.model.labels import LABELS_MAX
from tests.server.processes import Server

CALLED = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: called, path: labels/called, labels: {stage: load}}
workflow: [{step: start, tool: {kind: noop}}]
"""
CALLING = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata:
  {name: calling, path: labels/calling, owner: ann, tags: [x],
   labels: {team: sales, stage: all, tier: 1}}
workflow: [{step: start, tool: {kind: playbook, path: labels/called}}]
"""


def started(server: Server, path: str, **body) -> str:
    execution_id = server.post("/api/execute", {"path": path, **body})["execution_id"]
    assert server.ended(execution_id)["status"] == "COMPLETED"
    return execution_id


@pytest.fixture(scope="module")
def labelled(dev) -> dict[str, str]:
    """Executions by name: one with the labels of its playbook, one with others over them."""
    for text in (CALLED, CALLING):
        dev.post("/api/catalog/register", {"content": text})
    return {
        "plain": started(dev, "labels/calling"),
        "given": started(dev, "labels/calling", labels={"team": "billing", "run/by": "ann=x"}),
    }


def listed(server: Server, **params) -> set[str]:
    return {row["execution_id"] for row in server.get("/api/executions", **params)["executions"]}


def test_an_execution_has_the_labels_of_its_playbook_and_those_given_over_them(dev, labelled):
    shown = {name: dev.get(f"/api/executions/{one}")["labels"] for name, one in labelled.items()}

    own = {"owner": "ann", "stage": "all", "team": "sales", "tier": "1"}
    assert shown["plain"] == own
    assert shown["given"] == own | {"team": "billing", "run/by": "ann=x"}


def test_a_called_execution_has_its_callers_labels_unless_its_playbook_says_others(dev, labelled):
    [child] = dev.get("/api/executions", parent=labelled["given"])["executions"]

    assert child["labels"] == {
        "owner": "ann",
        "run/by": "ann=x",
        "stage": "load",
        "team": "billing",
        "tier": "1",
    }


def test_a_rerun_has_the_labels_of_the_first(dev, labelled):
    again = dev.post(f"/api/executions/{labelled['given']}/rerun")["execution_id"]

    assert dev.ended(again)["labels"]["team"] == "billing"


def test_executions_are_found_by_one_label_and_by_several(dev, labelled):
    top = {"path": "labels/calling", "limit": 100}
    assert labelled["plain"] in listed(dev, **top, **{"label.team": "sales"})
    assert labelled["given"] not in listed(dev, **top, **{"label.team": "sales"})
    both = {"label.team": "billing", "label.run/by": "ann=x", "label.stage": "load"}
    found = dev.get("/api/executions", **both)["executions"]
    assert {row["path"] for row in found} == {"labels/called"}
    assert listed(dev, **both, status="FAILED") == set()


def test_executions_are_counted_by_label(dev, labelled):
    before = dev.get("/api/labels/team")["values"]
    started(dev, "labels/called", labels={"team": "counted"})

    after = dev.get("/api/labels/team")["values"]
    assert {one["value"] for one in before} >= {"sales", "billing"}
    assert {"value": "counted", "executions": 1} in after
    assert dev.get("/api/labels/nobody") == {"label": "nobody", "values": []}


@pytest.mark.parametrize(
    ("labels", "word"),
    [
        ({"a b": "x"}, "cannot be the name"),
        ({"": "x"}, "cannot be the name"),
        ({"a": "x" * 256}, "up to 255 characters"),
        ({"a": "x\ny"}, "control characters"),
        ({f"n{number}": "x" for number in range(LABELS_MAX + 1)}, "up to 32 labels"),
        ({"a": 5}, "Expected `str`"),
    ],
)
def test_what_cannot_be_a_label_is_refused_and_nothing_starts(dev, labelled, labels, word):
    before = listed(dev, path="labels/called", limit=1000)

    reply = dev.ask("POST", "/api/execute", {"path": "labels/called", "labels": labels})

    assert reply.status == 400
    assert word in reply.json["error"]["message"]
    assert listed(dev, path="labels/called", limit=1000) == before


def test_a_misspelt_parameter_is_told_how_labels_are_written(dev):
    reply = dev.ask("GET", "/api/executions", label="team")

    assert reply.status == 422
    assert "label.NAME" in reply.json["error"]["message"]
