"""Queries of executions: how they are read, and that every store answers them alike."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

import pytest

from noetl.errors import BadQuery
from noetl.model.execution_query import Condition, Term, parse, quoted
from noetl.store import records
from noetl.store.base import Store
from noetl.store.records import Summary
from tests.store.making import NOON, start, summary

NOW = NOON + 10_000.0
ENDED = ("COMPLETED", "FAILED", "CANCELLED")
ERRORS = ("duplicate key (23505)", "100% of disk_full\\x", "Zeitüberschreitung")


def rows() -> list[Summary]:
    """Sixty executions of all kinds."""
    found = []
    for number in range(60):
        status = ("PENDING", "RUNNING", "PAUSED", *ENDED)[number % 6]
        begun = NOON + number * 100
        is_failed = status == "FAILED"
        found.append(
            summary(
                f"{7_000_000 + number * 37}",
                path=("shop/orders", "shop/report", "lab/[x]_1", "Labs")[number % 4],
                version=None if number % 10 == 0 else number % 5 + 1,
                status=status,
                requested_at=begun,
                ended_at=begun + number * 7.5 if status in ENDED else None,
                parent_execution_id="7000000" if number % 7 == 3 else None,
                current_steps=("a b", 'say "x"') if status == "RUNNING" else (),
                error=ERRORS[number % 3] if is_failed else None,
                failed_step="load" if is_failed else "",
                labels={"team": 'ann "x"' if number % 2 else "b"} if number % 5 else {},
                waits=("form", "event", "")[number % 3] if status == "RUNNING" else "",
            )
        )
    return found


def took(row: Summary) -> float:
    return (NOW if row.ended_at is None else row.ended_at) - row.requested_at


def has_text(row: Summary, text: str) -> bool:
    at_ends = row.execution_id.startswith(text) or row.execution_id.endswith(text)
    folded = text.lower()
    return folded in row.path.lower() or folded in (row.error or "").lower() or at_ends


QUERIES = {
    "": lambda row: True,
    "status:failed": lambda row: row.status == "FAILED",
    "status:FAILED,paused": lambda row: row.status in ("FAILED", "PAUSED"),
    "status:done": lambda row: row.status == "COMPLETED",
    "status:active": lambda row: row.status not in ENDED,
    "status:waiting": lambda row: row.status == "RUNNING" and bool(row.waits),
    "status:waiting,failed": lambda row: bool(row.waits) or row.status == "FAILED",
    "waits:form": lambda row: row.waits == "form",
    "waits:form,event path:shop/*": lambda row: bool(row.waits) and row.path.startswith("shop/"),
    "-status:ended": lambda row: row.status not in ENDED,
    "path:shop/*": lambda row: row.path.startswith("shop/"),
    "path:shop/orders,labs": lambda row: row.path == "shop/orders",
    "path:*/r?port": lambda row: fnmatchcase(row.path, "*/r?port"),
    "path:lab/[x]*": lambda row: row.path == "lab/[x]_1",
    'path:"lab/[x]_1"': lambda row: row.path == "lab/[x]_1",
    "path:lab/_x*": lambda row: False,
    "-path:shop/*": lambda row: not row.path.startswith("shop/"),
    "took:>5m": lambda row: took(row) > 300,
    "took:<1m": lambda row: took(row) < 60,
    "took:>=1h30m status:running": lambda row: took(row) > 5400 and row.status == "RUNNING",
    "since:2h": lambda row: row.requested_at >= NOW - 7200,
    "since:2025-10-09T09:00:00Z until:2025-10-09T09:40:00+00:00": lambda row: (
        1760000400 <= row.requested_at < 1760002800
    ),
    "version:3": lambda row: row.version == 3,
    "version:>3": lambda row: row.version is not None and row.version > 3,
    "version:<=2": lambda row: row.version is not None and row.version <= 2,
    "-version:3": lambda row: row.version != 3,
    "parent:7000000": lambda row: row.parent_execution_id == "7000000",
    "parent:none": lambda row: row.parent_execution_id is None,
    "parent:*": lambda row: row.parent_execution_id is not None,
    "id:70000": lambda row: row.execution_id.startswith("70000"),
    "id:7": lambda row: True,
    "step:load": lambda row: row.failed_step == "load",
    'step:"a b"': lambda row: "a b" in row.current_steps,
    "step:a": lambda row: False,
    "error:*": lambda row: row.error is not None,
    "-error:*": lambda row: row.error is None,
    "error:DUPLICATE": lambda row: row.error == ERRORS[0],
    "-error:duplicate": lambda row: row.error != ERRORS[0],
    "error:100%": lambda row: row.error == ERRORS[1],
    "error:disk_f": lambda row: row.error == ERRORS[1],
    "error:disk.f": lambda row: False,
    "error:\\x": lambda row: row.error == ERRORS[1],
    '"duplicate key"': lambda row: has_text(row, "duplicate key"),
    "REPORT": lambda row: has_text(row, "report"),
    "37": lambda row: has_text(row, "37"),
    "shop -report": lambda row: has_text(row, "shop") and not has_text(row, "report"),
    "label.team=b": lambda row: row.labels.get("team") == "b",
    'label.team="ann \\"x\\"",b': lambda row: "team" in row.labels,
    "-label.team=b": lambda row: row.labels.get("team") != "b",
    "label.team=*": lambda row: "team" in row.labels,
    "label.other=*": lambda row: False,
    "label.team=b status:failed": lambda row: (
        row.labels.get("team") == "b" and row.status == "FAILED"
    ),
    "a=b": lambda row: False,
    "status:failed path:shop/* took:>30s since:3h": lambda row: (
        row.status == "FAILED"
        and row.path.startswith("shop/")
        and took(row) > 30
        and row.requested_at >= NOW - 10800
    ),
}


async def test_every_store_finds_counts_and_buckets_the_same(store: Store):
    every = rows()
    assert await store.records.span() is None
    await store.log.commit([start(row.execution_id, summary=row) for row in every])
    newest = sorted(every, key=lambda row: row.requested_at, reverse=True)
    assert await store.records.span() == (newest[-1].requested_at, newest[0].requested_at)
    for text, holds in QUERIES.items():
        wanted = parse(text, NOW)
        expected = [row for row in newest if holds(row)]

        assert await store.records.summaries(wanted, now=NOW, limit=100) == expected, text
        assert await store.records.count(wanted, now=NOW) == len(expected), text
        whole = {"begin": NOON, "width": 500.0, "end": NOW}
        buckets: dict[tuple[int, str], int] = {}
        for row in expected:
            place = (int((row.requested_at - NOON) // 500), row.status)
            buckets[place] = buckets.get(place, 0) + 1
        found = await store.records.histogram(wanted, now=NOW, **whole)
        assert found == [(*place, count) for place, count in sorted(buckets.items())], text


async def test_every_store_finds_the_newest_of_several_playbooks_at_once(store: Store):
    every = rows()
    await store.log.commit([start(row.execution_id, summary=row) for row in every])

    found = await store.records.latest_runs(["shop/orders", "Labs", "Labs", "never/ran"], limit=4)

    newest = [row for path in ("Labs", "shop/orders") for row in newest_of(every, path)[:4]]
    assert [(run.path, run.execution_id, run.status, run.ended_at) for run in found] == [
        (row.path, row.execution_id, row.status, row.ended_at) for row in newest
    ]


def newest_of(every: list[Summary], path: str) -> list[Summary]:
    return [row for row in reversed(every) if row.path == path]


async def test_the_first_events_of_several_executions_are_read_at_once(store: Store):
    written = [start("71", count=2), start("72")]
    await store.log.commit(written)

    found = await store.log.openings(["71", "72", "73"])

    assert {key: len(re.findall(rb'"seq"', one)) for key, one in found.items()} == {
        "71": 2,
        "72": 1,
    }


@pytest.mark.parametrize(
    ("text", "at", "length", "said"),
    [
        ("status:faild", 7, 5, 'there is no status "faild". Did you mean "failed"?'),
        ("x stauts:failed", 2, 6, 'there is no key "stauts". Did you mean "status"?'),
        ("took:5m", 5, 2, "took: takes >5m or <30s"),
        ("took:>soon", 5, 5, "took: takes >5m or <30s"),
        ("since:yesterdy", 6, 8, "since: takes a span such as 2d"),
        ("version:new", 8, 3, "version: takes a number"),
        ('path:"shop', 5, 5, "the quotation mark is not closed"),
        ("path:", 5, 1, "path: has no value"),
        ("status:failed,", 14, 1, "status: has no value"),
        ("status=failed", 6, 1, 'write ":" after status'),
        ("label.=x", 0, 6, "a label has a name"),
        ("waits:rain", 6, 4, "waits: takes form, event or timer"),
        ("http://shop", 0, 4, "Quotes make it a text"),
        ("a\0b", 1, 1, "NUL"),
    ],
)
def test_a_query_that_cannot_be_read_names_the_place(text: str, at: int, length: int, said: str):
    with pytest.raises(BadQuery) as caught:
        parse(text, NOW)

    assert (caught.value.at, caught.value.length) == (at, length)
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"character {at + 1}: ")


def test_a_query_is_bounded():
    for text in ("x" * 2001, "a " * 51, "error:" + ",".join("x" * 51), "a " * 30 + "id:1,2 " * 11):
        with pytest.raises(BadQuery, match="at most"):
            parse(text, NOW)


def test_what_is_quoted_is_read_as_it_was():
    for text in ("a b", 'say "x"', "back\\slash", 'both \\"', "shop/*", "-x:y", "\\"):
        assert parse(quoted(text), NOW) == (Term((Condition("text", text),)),)


def test_labels_are_read_with_both_signs():
    label = Term((Condition("label", "x", "team"),))

    assert parse("label.team=x label.team:x", NOW) == (label, label)
    assert parse("label.app.io/name=*", NOW) == (
        Term((Condition("any_label", "", "app.io/name"),)),
    )


def test_a_whole_id_is_not_looked_for_at_the_ends_of_others():
    whole = "700000000000000007"

    assert parse(f"id:{whole}", NOW) == (Term((Condition("exact_id", whole),)),)
    assert parse(whole, NOW) == (Term((Condition("text", whole), Condition("exact_id", whole))),)
    assert parse("id:000007", NOW) == (Term((Condition("id", "000007"),)),)


async def test_what_a_query_finds_does_not_depend_on_how_it_is_looked_up(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    """With more paths and labels than are looked up, rows are compared instead."""
    every = rows()
    await store.log.commit([start(row.execution_id, summary=row) for row in every])
    texts = [text for text in QUERIES if re.search(r"path|label|[a-zA-Z]{4}", text)]
    found = [await store.records.summaries(parse(text, NOW), now=NOW) for text in texts]
    monkeypatch.setattr(records, "PATHS_MAX", 2)
    monkeypatch.setattr(records, "FEW", 2)

    for text, expected in zip(texts, found, strict=True):
        assert await store.records.summaries(parse(text, NOW), now=NOW) == expected, text


async def test_the_first_page_begins_where_the_query_says_until(store: Store):
    every = rows()
    await store.log.commit([start(row.execution_id, summary=row) for row in every])
    early, late = every[20].requested_at, every[40].requested_at

    for text, end in (
        (f"until:{NOW - early}s", early),
        (f"until:{NOW - early}s,{NOW - late}s", late),
        (f"until:{NOW - early}s until:{NOW - late}s", early),
        (f"-until:{NOW - early}s", NOW),
    ):
        found = await store.records.summaries(parse(text, NOW), now=NOW, limit=100)
        oldest = early if text.startswith("-") else 0.0
        expected = [row for row in reversed(every) if oldest <= row.requested_at < end]
        assert found == expected, text
