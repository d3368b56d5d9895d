"""`noetl schedules` and `noetl register` of schedules, on a database that nobody holds."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path

import pytest

from tests.server.test_schedules import PLAYBOOK, SCHEDULE


@pytest.fixture
def registered(noetl, tmp_path: Path):
    (tmp_path / "p.yaml").write_text(PLAYBOOK)
    daily = SCHEDULE.replace("every: 1s", 'cron: "30 4 * * *", timezone: Europe/Berlin')
    (tmp_path / "s.yaml").write_text(daily)
    ran = noetl("register", ".")
    assert ran.code == 0, ran.err
    assert "schedule web/s version 1" in ran.err
    return noetl


def test_schedules_are_listed_shown_paused_run_and_deleted(registered):
    listed = registered("schedules", "list")
    coming = registered("schedules", "next", "web/s", "--count", "3").out.splitlines()
    assert len(coming) == 3
    assert all("T04:30:00+0" in one for one in coming)
    # One moment is written in one way for people, and in UTC for programs.
    assert f"web/s  30 4 * * * (Europe/Berlin)  next {coming[0]}" in listed.out
    [item] = json.loads(registered("schedules", "list", "--json").out)["schedules"]
    assert item["next_time"].endswith("Z")
    assert datetime.fromisoformat(item["next_time"]) == datetime.fromisoformat(coming[0])
    assert registered("schedules", "pause", "web/s", "--reason", "stocktaking").code == 0
    assert "paused: stocktaking" in registered("schedules", "list").out
    assert "it is paused: none of these starts" in registered("schedules", "next", "web/s").err
    assert f"next time is {coming[0]}" in registered("schedules", "resume", "web/s").err
    ran = registered("schedules", "run", "web/s")
    assert "no process runs it" in ran.err
    filled = registered(
        *("schedules", "backfill", "web/s", "--from", "2026-01-01", "--to", "2026-01-03"),
        *("--dry-run", "--json"),
    )
    assert [one[:16] for one in json.loads(filled.out)["times"]] == [
        "2026-01-01T04:30",
        "2026-01-02T04:30",
        "2026-01-03T04:30",
    ]
    spans = {("2026-01-01", "2026-01-01"): 1, ("2026-01-01", "2026-01-02T04:29"): 1}
    for (first, last), count in spans.items():
        filled = registered(
            *("schedules", "backfill", "web/s", "--from", first, "--to", last, "--dry-run")
        )
        assert len(filled.out.splitlines()) == count
    shown = registered("schedules", "show", "web/s")
    [told] = [
        line for line in shown.out.splitlines() if ran.out.strip() in line and "(run)" in line
    ]
    assert re.match(r"\S+T\d\d:\d\d:\d\d\+0[12]:00  started  \(run\)", told), told
    assert json.loads(registered("schedules", "show", "web/s", "--json").out)["running"]
    assert registered("schedules", "delete", "web/s").code == 0
    gone = registered("schedules", "show", "web/s")
    assert (gone.code, "no schedule" in gone.err) == (1, True)


def test_who_asks_for_a_run_that_cannot_start_is_told_once(
    noetl, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "a.yaml").write_text(SCHEDULE)
    noetl("register", "a.yaml")

    ran = noetl("schedules", "run", "web/s")

    assert ran.code == 1
    reason = 'no playbook "web/p" is registered. `noetl register FILE` registers one.'
    assert ran.err == f"noetl: it could not be started: {reason}\n"
    assert [one.getMessage() for one in caplog.records] == []


def test_what_starts_a_playbook_that_is_not_there_says_so_and_comes_after_playbooks(
    noetl, tmp_path: Path
):
    (tmp_path / "a.yaml").write_text(SCHEDULE)
    alone = noetl("register", "a.yaml")
    assert alone.code == 0
    assert 'a.yaml: no playbook "web/p" is registered.' in alone.err
    assert "starts nothing until there is one" in alone.err
    assert noetl("catalog", "list").out == "web/s  schedule version 1  often\n"

    (tmp_path / "b.yaml").write_text(PLAYBOOK)
    both = noetl("register", ".")
    assert both.err.splitlines()[:-1] == [
        "noetl: b.yaml: web/p version 1",
        "noetl: a.yaml: schedule web/s version 1",
    ]
    assert "no server runs" in both.err.splitlines()[-1]
    (tmp_path / "a.yaml").write_text(SCHEDULE.replace("playbook: web/p", "playbook: web/q"))
    assert 'no playbook "web/q" is registered.' in noetl("register", "a.yaml").err


def test_a_rhythm_is_told_in_the_units_that_people_choose(noetl, tmp_path: Path):
    (tmp_path / "p.yaml").write_text(PLAYBOOK)
    often = SCHEDULE.replace("every: 1s", "every: 15m, offset: 90s")
    (tmp_path / "s.yaml").write_text(often)
    assert noetl("register", "p.yaml", "s.yaml").code == 0
    assert "every 15 min, offset 90 s" in noetl("schedules", "list").out
    assert "when     every 15 min, offset 90 s" in noetl("schedules", "show", "web/s").out


def test_a_trigger_without_a_server_is_registered_with_a_word_about_that(noetl, tmp_path: Path):
    (tmp_path / "p.yaml").write_text(PLAYBOOK)
    (tmp_path / "s.yaml").write_text(SCHEDULE)
    assert "no server runs" not in noetl("register", "p.yaml").err
    told = noetl("register", "p.yaml", "s.yaml")
    assert told.code == 0
    assert told.err.count("no server runs on this database") == 1
    assert "`noetl dev`" in told.err


def test_noetl_run_starts_nothing_by_itself(noetl, tmp_path: Path):
    sleeps = "tool: {kind: python, code: 'import time; time.sleep(2.5)'}"
    slow = PLAYBOOK.replace("web/p", "web/slow").split("workflow:")[0]
    (tmp_path / "p.yaml").write_text(PLAYBOOK)
    (tmp_path / "s.yaml").write_text(SCHEDULE)
    assert noetl("register", "p.yaml", "s.yaml").code == 0
    (tmp_path / "slow.yaml").write_text(f"{slow}workflow: [{{step: start, {sleeps}}}]\n")

    assert noetl("run", "slow.yaml").code == 0
    listed = json.loads(noetl("executions", "list", "--json").out)["executions"]
    assert [one["path"] for one in listed] == ["web/slow"]


def test_a_schedule_that_is_wrong_is_not_kept_and_the_others_are(noetl, tmp_path: Path):
    (tmp_path / "p.yaml").write_text(PLAYBOOK)
    (tmp_path / "s.yaml").write_text(SCHEDULE.replace("every", "evry"))
    (tmp_path / "t.yaml").write_text(
        SCHEDULE.replace("web/p", "web/other").replace("web/s", "web/p")
    )
    ran = noetl("register", ".")

    assert ran.code == 2
    assert "p.yaml: web/p version 1" in ran.err
    assert 's.yaml:4:65: a schedule\'s `spec` has no `evry`. Did you mean "every"?' in ran.err
    assert 't.yaml: "web/p" is a Playbook in the catalog' in ran.err
    assert "no schedule is registered" in noetl("schedules", "list").err


def test_validate_fmt_and_schema_know_the_kind(noetl, tmp_path: Path):
    (tmp_path / "s.yaml").write_text(SCHEDULE)

    assert noetl("validate", "s.yaml").code == 0
    assert noetl("fmt", "s.yaml").code == 0
    assert noetl("fmt", "--check", "s.yaml").code == 0
    assert json.loads(noetl("schema", "--kind", "schedule").out)["title"] == "NoETL schedule"
    assert "not a playbook" in noetl("run", "s.yaml").err
