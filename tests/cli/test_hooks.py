"""`noetl hooks` and `noetl signal --match`, on a database that nobody holds."""

from __future__ import annotations

import json
from pathlib import Path

from tests.server.test_hooks import ECHO, HOOKS, WAITS, hook


def test_hooks_are_registered_listed_shown_and_deleted(noetl, tmp_path: Path):
    (tmp_path / "p.yaml").write_text(ECHO)
    (tmp_path / "h.yaml").write_text(hook("github", HOOKS["github"]))
    (tmp_path / "s.yaml").write_text(hook("shipped", HOOKS["shipped"]))
    assert noetl("register", ".").code == 0
    listed = noetl("hooks", "list").out
    assert "hooks/github   POST /hooks/hooks/github  github  → hooks/echo" in listed
    assert "hooks/shipped  POST /hooks/hooks/shipped  none  → signal order.shipped" in listed
    shown = noetl("hooks", "show", "hooks/github")
    assert 'the credential "shared" is missing' in shown.err
    assert json.loads(noetl("hooks", "list", "--json", "--prefix", "hooks/s").out)["hooks"]
    assert noetl("hooks", "delete", "hooks/github").code == 0
    gone = noetl("hooks", "show", "hooks/github")
    assert (gone.code, "no hook" in gone.err) == (1, True)


def test_an_event_goes_to_those_that_match(noetl, tmp_path: Path):
    (tmp_path / "w.yaml").write_text(WAITS)
    assert noetl("register", ".").code == 0
    for usage in ((), ("last", "--match", "{{ true }}"), ("--match", "x", "--step", "start")):
        assert noetl("signal", *usage).code == 2
    heard = noetl("signal", "--match", "{{ workload.order == 'A' }}", "--name", "order.shipped")
    assert (heard.code, heard.out) == (1, "")
    assert "nobody received order.shipped: no execution that waits for it at the mo" in heard.err
    for others in (("--path", "hooks/waits"), ("--label", "team=sales")):
        assert noetl("signal", *others, "--name", "order.shipped").code == 1
    wrong = noetl("signal", "--match", "{{ broken", "--name", "order.shipped")
    assert wrong.code != 0
    assert "`match` cannot be read" in wrong.err
