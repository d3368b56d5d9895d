"""E1: every example runs, and what it yields and leaves behind is right to the last figure."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest

from examples.demo_server import DEMO_TOKEN, PORT
from noetl.model.events import (
    ChildStarted,
    ExecutionBounded,
    IterationDone,
    PollIteration,
    RetryStarted,
    StepSkipped,
    StepStarted,
    TaskDone,
    TaskStarted,
    TimerFired,
    TokenAbsorbed,
)
from tests.examples.conftest import Shop
from tests.examples.system import EXAMPLES, Bench, Run, example, on_bench

DEMO_URL = f"http://127.0.0.1:{PORT}"


def run(name: str, workload: dict[str, Any] | None = None, shop: Shop | None = None) -> Run:
    """Run an example, against this demo server if it needs one."""
    text = example(name)
    assert (shop is not None) == (DEMO_URL in text)
    if shop is not None:
        text = text.replace(DEMO_URL, shop.url)
    return on_bench(lambda bench: bench.run(text, workload))


def rows(database: Path, sql: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(database) as connection:
        found = connection.execute(sql).fetchall()
    connection.close()
    return found


def test_every_example_is_run_here():
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))

    for path in set(EXAMPLES.glob("*.yaml")) - set(EXAMPLES.glob("*.test.yaml")):
        assert f'"{path.stem}"' in text, f"{path.name} is shown to people but never run"


# --- HTTP --------------------------------------------------------------------------------------

REPORT = """\
city        orders   revenue
Kyoto           50    113.25
Lima            50    112.75
Nairobi         50    112.25
Lisbon          50    111.75
Oslo            45    101.25"""


def test_orders_pages_cleans_keeps_and_reports(shop, tmp_path):
    places = {"warehouse": f"{tmp_path}/o.duckdb", "published": f"{tmp_path}/o.db"}

    done = run("orders", places, shop)

    assert done.result == REPORT
    with duckdb.connect(places["warehouse"]) as warehouse:
        kept = warehouse.execute("SELECT count(*), sum(cents), min(order_id) FROM orders")
        assert kept.fetchone() == (245, 55125, 1)
    published = rows(tmp_path / "o.db", "SELECT city, orders, revenue FROM revenue ORDER BY city")
    assert published[0] == ("Kyoto", 50, 113.25)
    assert len(published) == 5
    [wait] = done.of(RetryStarted)
    assert (wait.task, wait.delay) == ("fetch", 1)
    assert len(shop.paths("GET")) == 5 + 1


def test_orders_may_be_run_again_and_says_when_the_shop_is_down(shop, tmp_path):
    places = {"warehouse": f"{tmp_path}/o.duckdb", "published": f"{tmp_path}/o.db"}
    run("orders", places, shop)

    assert run("orders", places, shop).result == REPORT
    broken = run("orders", {**places, "shop_url": f"{shop.url}/nowhere"}, shop)
    assert broken.result == (f"no report: GET {shop.url}/nowhere/orders answered 404 Not Found.")


def test_pagination_reads_every_list_and_waits_when_asked_to(shop, tmp_path):
    done = run("pagination", {"database": f"{tmp_path}/s.db"}, shop)

    assert done.result == {
        "lists": {"total": 3, "success": 3, "failed": 0},
        "pages": 3 + 5,
        "missing": ["castles"],
    }
    stock = rows(tmp_path / "s.db", "SELECT count(*), sum(place) FROM stock")
    assert stock == [(120 + 430, sum(range(120)) + sum(range(430)))]
    assert sorted(wait.delay for wait in done.of(RetryStarted)) == [1, 1]


def test_parallel_map_folds_in_the_order_of_the_list(shop):
    done = run("parallel_map", None, shop)

    assert done.result == {
        "cities": ["Oslo", "Lisbon", "Nairobi"],
        "average": 16.67,
        "warmest": 24.5,
    }


def test_error_recovery_goes_from_primary_to_replica_to_file(shop):
    rates = {"EUR": 1, "NOK": 11.5, "USD": 1.1}
    old = [
        {"currency": "EUR", "rate": 1.0},
        {"currency": "NOK", "rate": 11.4},
        {"currency": "USD", "rate": 1.09},
    ]

    usual = run("error_recovery", {"primary": f"{shop.url}/rates/today"}, shop)
    second = run("error_recovery", None, shop)
    last = run("error_recovery", {"replica": f"{shop.url}/rates/gone"}, shop)
    refused = run("error_recovery", {"primary": f"{shop.url}/nothing"}, shop)

    assert usual.result == {"source": "primary", "rates": rates}
    assert second.result == {"source": "replica", "rates": rates}
    assert [wait.delay for wait in second.of(RetryStarted)] == [0.05, 0.1]
    assert last.result == {"source": "file", "rates": old}
    assert refused.result == {"source": "file", "rates": old}
    assert second.step("start")["error"]["kind"] == "server_error"


def test_saga_books_all_three_or_nothing(shop):
    done = run("saga", None, shop)

    assert sorted(shop.demo.bookings) == sorted(done.result.values())
    assert set(done.result) == {"flight", "room", "car"}

    shop.demo.bookings.clear()
    failed = run("saga", {"trip": {"to": "Atlantis"}}, shop)

    assert failed.error["status"] == 409
    assert failed.document["failed_step"] == "book_car"
    assert shop.demo.bookings == {}
    undone = [path.split("/")[2] for path in shop.paths("DELETE")]
    assert undone == ["rooms", "flights"]


def test_nested_loops_reads_every_room_of_every_hotel_of_every_city(shop):
    done = run("nested_loops", None, shop)

    assert done.result == {
        "Oslo": [*(f"Oslo/fjord/{n}" for n in range(1, 6)), "Oslo/north/1", "Oslo/north/2"],
        "Lisbon": [f"Lisbon/tejo/{n}" for n in range(1, 4)],
    }


def test_job_polling_asks_until_the_job_is_done(shop):
    done = run("job_polling", {"pause": "10ms"}, shop)

    assert done.result == {"state": "done", "tries": 3, "sum": 500500}
    assert [wait.delay for wait in done.of(RetryStarted)] == [0.01, 0.01]


def test_case_pagination_collects_every_page_and_waits_when_asked_to(shop):
    done = run("event_rules/case_pagination", None, shop)

    assert done.result == {"items": 430, "reason": None}
    assert [wait.delay for wait in done.of(RetryStarted)] == [1]


def test_case_pagination_gives_up_on_a_list_that_does_not_exist(shop):
    done = run("event_rules/case_pagination", {"list": "castles"}, shop)

    assert done.result["items"] == 0
    assert "404" in done.result["reason"]


def test_polling_looks_until_the_job_is_done(shop):
    done = run("event_rules/polling", {"pause": "10ms"}, shop)

    assert done.result == {"state": "done", "sum": 500000500000}
    assert [look.number for look in done.of(PollIteration)] == [1, 2]


def test_timeouts_stops_what_takes_too_long_and_keeps_the_rest(shop):
    done = run("timeouts", None, shop)

    assert done.result == {"fast": "0", "slow": "timeout", "endless": "timeout"}
    assert done.document["duration_seconds"] < 2


def test_first_answer_goes_on_with_the_first_and_runs_once(shop):
    done = run("first_answer", None, shop)
    other_way = run("first_answer", {"mirrors": {"near": 0.4, "far": 0}}, shop)

    assert done.result == "used near"
    assert other_way.result == "used far"
    assert done.step("use")["runs"] == 1


def test_credentials_reach_the_service_and_nothing_else(shop):
    text = example("credentials").replace(DEMO_URL, shop.url)

    async def work(bench: Bench) -> tuple[Run, Run]:
        refused = await bench.run(text)
        await bench.system.keys.put("shop", "bearer", {"token": DEMO_TOKEN})
        return refused, await bench.run(text)

    refused, done = on_bench(work)

    assert refused.error["kind"] == "auth"
    assert "noetl credential set shop" in refused.error["message"]
    assert refused.of(StepStarted) == []
    assert done.result == {"customers": ["Ada", "Grace"], "same": True, "shown": "my token is ***"}
    assert DEMO_TOKEN not in str(done)


# --- Databases and files -----------------------------------------------------------------------


def test_files_duckdb_joins_files_and_writes_parquet(tmp_path):
    target = f"{tmp_path}/monthly.parquet"

    done = run("files_duckdb", {"target": target})

    assert done.result == {
        "shops": [
            {"shop": "Airport", "sales": 1, "amount": 99.0},
            {"shop": "Station", "sales": 2, "amount": 55.5},
            {"shop": "Harbour", "sales": 2, "amount": 32.5},
        ],
        "months": [{"month": "2026-01", "amount": 136.5}, {"month": "2026-02", "amount": 56.5}],
        "best": "Airport",
    }
    written = duckdb.read_parquet(target).fetchall()
    assert written == [("2026-01", 136.5), ("2026-02", 56.5)]


def test_postgres_upsert_adds_and_updates(postgres):
    text = example("postgres_upsert")
    changed = {
        "products": [
            {"sku": "B-7", "name": "Big buoy", "cents": 2100, "tags": ["iron"]},
            {"sku": "C-9", "name": "Cable", "cents": 800, "tags": []},
        ]
    }

    async def work(bench: Bench) -> tuple[Run, Run, Run]:
        await bench.system.keys.put("warehouse", "postgres", postgres)
        bad = {"products": [{"sku": "X", "name": "Nothing", "cents": 0, "tags": []}]}
        return await bench.run(text), await bench.run(text, changed), await bench.run(text, bad)

    first, second, refused = on_bench(work)

    assert first.result == {
        "written": [{"sku": "A-1", "cents": 4200}, {"sku": "B-7", "cents": 1900}],
        "products": 2,
        "iron": ["A-1"],
    }
    assert second.result["products"] == 3
    assert second.result["iron"] == ["A-1", "B-7"]
    assert refused.error["kind"] == "db_constraint"
    with psycopg.connect(**postgres) as connection:
        kept = connection.execute("SELECT sku, name, cents, tags FROM products ORDER BY sku")
        assert kept.fetchall() == [
            ("A-1", "Anchor", 4200, ["iron", "heavy"]),
            ("B-7", "Big buoy", 2100, ["iron"]),
            ("C-9", "Cable", 800, []),
        ]


def test_work_queue_prices_every_parcel_once(postgres):
    text = example("work_queue")

    async def work(bench: Bench) -> tuple[Run, Run]:
        await bench.system.keys.put("warehouse", "postgres", postgres)
        return await bench.run(text), await bench.run(text)

    first, second = on_bench(work)

    assert first.result == {"priced": 12, "failed": 0, "cents": 7680}
    assert second.result == {"priced": 0, "failed": 0, "cents": 0}
    with psycopg.connect(**postgres) as connection:
        kept = connection.execute("SELECT count(*), sum(cents) FROM parcel WHERE state = 'done'")
        assert kept.fetchall() == [(12, 7680)]


def test_csv_to_sqlite_loads_the_good_and_lists_the_bad(tmp_path):
    database = tmp_path / "people.db"

    done = run("csv_to_sqlite", {"database": str(database)})
    again = run("csv_to_sqlite", {"database": str(database)})
    nothing = run("csv_to_sqlite", {"database": str(database), "source": "nowhere.csv"})

    assert done.result == again.result
    assert done.result == {
        "loaded": 3,
        "rejected": [{"line": 4, "why": "no name"}, {"line": 5, "why": "no year"}],
    }
    assert rows(database, "SELECT name, born FROM people ORDER BY born") == [
        ("Ada Lovelace", 1815),
        ("Grace Hopper", 1906),
        ("Barbara Liskov", 1939),
    ]
    assert rows(database, "SELECT line FROM rejected") == [(4,), (5,)]
    assert nothing.result == {"loaded": 0, "rejected": []}


def test_report_writes_markdown(tmp_path):
    target = tmp_path / "report.md"

    done = run("report", {"target": str(target), "title": "Winter"})

    assert done.result == {"file": str(target), "lines": 7}
    assert target.read_text() == (
        "# Winter\n\n| month | sales | amount |\n|---|---:|---:|\n"
        "| 2026-01 | 4 | 136.50 |\n| 2026-02 | 3 | 56.50 |\n| all | 7 | 193.00 |\n"
    )


def test_incremental_takes_over_what_is_new_and_nothing_twice(tmp_path):
    database = {"database": f"{tmp_path}/events.db"}

    first = run("incremental", {**database, "until": "2026-03-02"})
    second = run("incremental", database)
    third = run("incremental", database)

    assert first.result == {"since": "", "new": 2}
    assert second.result == {"since": "2026-03-02", "new": 1}
    assert third.result == {"since": "2026-03-04", "new": 0}
    assert rows(tmp_path / "events.db", "SELECT id, what FROM events ORDER BY id") == [
        (1, "opened"),
        (2, "paid"),
        (3, "shipped"),
    ]


def test_large_results_travel_by_reference():
    done = run("large_results")

    assert done.result == {
        "rows": 20000,
        "sum": sum(n * n for n in range(20000)),
        "last": "row number 19999",
        "tenth": 100,
    }
    reference = done.step("start")["result"]
    assert set(reference) == {"_ref", "_store", "_preview"}
    assert reference["_ref"]["size"] > 1_000_000


# --- Flow --------------------------------------------------------------------------------------


def test_order_feed_ships_each_order_once_and_those_of_a_customer_in_turn():
    done = run("order_feed")

    shipped = sorted((one["order"], one["carrier"], one["insured"]) for one in done.result)
    assert shipped == [(1, "ship", True), (2, "ship", True), (3, "plane", True)]
    [again] = done.of(TokenAbsorbed)
    assert again.reason == "its arc has carried a token with the same key"
    [denied] = done.of(StepSkipped)
    assert denied.step == "ship"


def test_fork_join_puts_three_looks_together_once():
    done = run("fork_join")
    two = run("fork_join", {"with_letters": False, "text": "a bb"})

    assert (done.result["words"], done.result["longest"]) == (9, "quick")
    assert done.result["letters"]["o"] == 4
    assert two.result == {"words": 2, "longest": "bb", "letters": {}}
    assert done.step("together")["runs"] == 1


def test_sub_playbooks_runs_one_execution_per_customer():
    async def work(bench: Bench) -> Run:
        await bench.system.catalog.register(example("statement"))
        return await bench.run(example("sub_playbooks"))

    done = on_bench(work)

    assert done.result == {
        "statements": ["Ada has 135", "Grace has 0", "Edsger owes us 7"],
        "total": 128,
    }
    assert len({child.child for child in done.of(ChildStarted)}) == 3


def test_statement_runs_alone_as_well():
    done = run("statement", {"customer": "Alan", "bookings": [1, 2]})

    assert done.result == {"balance": 3, "text": "Alan has 3"}


def test_delayed_reminder_waits_without_a_worker():
    done = run("delayed_reminder", {"wait": "250ms"})
    paid = run("delayed_reminder", {"wait": 0, "paid": True})

    assert done.result == "order 4711 is not paid yet"
    assert 0.25 <= done.document["duration_seconds"] < 2
    assert len(done.of(TimerFired)) == 1
    assert paid.result is None
    assert paid.step("remind")["status"] == "skipped"


def answered(answer: dict[str, Any], workload: dict[str, Any] | None = None) -> Run:
    """Run the approval, and answer it as soon as it is started."""

    async def work(bench: Bench) -> Run:
        execution_id = await bench.start(example("approval"), workload)
        await bench.system.executions.signal(execution_id, "approval.received", answer)
        return await bench.ended(execution_id)

    return on_bench(work)


def test_approval_pays_refuses_and_reminds():
    paid = answered({"approved": "yes", "account": "travel"})
    refused = answered({"approved": False, "comment": "too dear"})
    ignored = run("approval", {"remind_after": "20ms", "give_up_after": "300ms"})

    assert paid.result == "invoice 2026-17: 4200 paid from travel"
    assert refused.result == "invoice 2026-17: not paid: too dear"
    assert ignored.result == "invoice 2026-17: not paid: nobody answered"
    assert ignored.ctx == {"reminded": True}
    [reminder] = [task for task in ignored.of(TaskDone) if task.task == "remind"]
    assert reminder.outcome.result["stdout"] == "invoice 2026-17 still waits for a yes\n"


def test_shell_words_counts_and_searches():
    done = run("shell_words")
    dogs = run("shell_words", {"text": 'dog "$(date)" dog'})

    assert done.result == {
        "words": {"and": 2, "bat": 1, "cat": 1, "hat": 1, "the": 3},
        "found": False,
    }
    assert dogs.result == {"words": {"dog": 2, '"$(date)"': 1}, "found": True}


def test_running_balance_carries_state_from_one_to_the_next():
    done = run("running_balance")

    assert done.result == {"balance": 10, "refused": [2], "after_each": [70, -20, 120, 10]}


@pytest.mark.parametrize(
    ("parcel", "carrier", "labels"),
    [
        ({}, "post", ["glass", "insured"]),
        ({"weight": 31}, "truck", []),
        ({"country": "SE", "fragile": False, "value": 5}, "air", ["customs"]),
        ({"fragile": False, "value": 5}, "post", []),
    ],
)
def test_routing_takes_one_way_and_any_number_of_labels(parcel, carrier, labels):
    done = run("routing", {"parcel": parcel})

    assert done.result == {"carrier": carrier, "labels": labels}


def test_dead_letters_imports_the_good_and_lists_the_others():
    done = run("dead_letters")

    assert done.result == {
        "sum": 49,
        "stats": {"total": 5, "success": 3, "failed": 2},
        "failures": [
            {"entry": "twelve", "why": "ValueError"},
            {"entry": "-1", "why": "ValueError"},
        ],
    }


def test_locked_work_gives_the_lock_back_whatever_happens(tmp_path):
    done = run("locked_work", {"folder": str(tmp_path)})
    failed = run("locked_work", {"folder": str(tmp_path), "fails": True})

    assert done.result == {"went": "well", "journal": ["worked", "done"]}
    assert failed.result == {"went": "badly", "journal": ["worked", "done", "worked"]}
    assert not (tmp_path / "lock").exists()


def test_refine_goes_back_until_it_is_good_enough():
    done = run("refine")
    rough = run("refine", {"number": 1_000_000})

    assert done.result == {"guess": 1.414214, "rounds": 2, "judged": "exact enough"}
    assert done.step("improve")["runs"] == 2
    assert rough.result["judged"] == "still rough"
    assert rough.result["rounds"] == 3
    rounds = [task for task in done.of(TaskDone) if task.task == "better"]
    assert len(rounds) == 4


# --- What describes and bounds executions ------------------------------------------------------


def test_typed_inputs_takes_texts_for_what_they_are():
    done = run("typed_inputs", {"shop": "south", "limit": "1"})

    assert done.result == {"day": "2026-01-31", "orders": 1, "amount": 22}
    assert done.document["labels"] == {"team": "sales"}


def test_budget_stops_at_its_quota_and_says_so():
    done = run("budget")

    assert done.result == (
        'stopped: step "start" needs 6 calls, and its quota is 5 (`quotas.max_calls`).'
    )
    assert len([fact for fact in done.of(TaskDone) if fact.step == "start"]) == 5
    assert run("budget", {"texts": ["a", "b"]}).result == ["A", "B"]


def test_shared_rate_spreads_the_calls_of_both_steps():
    done = run("shared_rate")

    assert done.result == 8100
    began = sorted(fact.at for fact in done.of(TaskStarted))
    assert len(began) == 7
    # Moments of the rate are a tenth of a second apart; a call may begin a little after its own.
    assert began[-1] - began[0] >= 0.5


def test_tracing_changes_nothing_where_nobody_collects():
    assert run("tracing").result == "84 archived"


def test_placement_runs_where_the_labels_are():
    done = on_bench(lambda bench: bench.run(example("placement")), labels="gpu=a100,zone=eu")

    assert done.result == {"model": "trained", "report": "written"}


def test_checked_results_go_on_only_if_they_fit():
    assert run("checked_results").result == {"total": 6.5}
    broken = run("checked_results", {"orders": [{"id": 1, "price": 1}, {"id": 2, "price": "x"}]})

    assert broken.result == {
        "total": 0,
        "reason": 'the result of task "start_task" breaks its schema: `orders[1].price` is string,'
        " not number.",
    }


def test_ordered_events_are_applied_in_the_order_of_each_account():
    done = run("ordered_events")

    assert done.result == "6 events are applied"
    applied = [fact.iteration for fact in done.of(IterationDone)]
    assert sorted(applied) == list(range(6))
    for account in ([0, 2, 5], [1, 4]):
        assert [one for one in applied if one in account] == account


def test_one_at_a_time_is_bounded_and_frees_its_slot():
    done = run("one_at_a_time")

    assert done.result == "the orders of ann are loaded"
    [bounded] = done.of(ExecutionBounded)
    assert bounded.slots == {"key orders of ann": 1, "playbook examples/one_at_a_time": 10}


def test_on_failure_says_what_happened_and_fails_all_the_same():
    done = run("on_failure")

    assert "orders.csv is not there" in done.error["message"]
    told = done.step("tell_us")["result"]
    assert told.startswith("start failed:")
    assert "orders.csv is not there" in told
