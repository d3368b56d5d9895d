"""Every screen of the web UI, and what it shows of the seeded executions."""

from __future__ import annotations

from tests.ui.seed import CAUSE


def screens(ids: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Every screen: its address, and something that it must show."""
    failed, done = ids["failed"], ids["done"]
    return {
        "home": ("/", "Failed today"),
        "list": ("/executions", "waits for a form"),
        "query": ("/executions?q=status:failed+path:shop/*", CAUSE),
        "failed": (f"/executions/{failed}", CAUSE),
        "events": (f"/executions/{failed}?tab=events", "playbook.processed"),
        "data": (f"/executions/{done}?tab=data", "25 orders of north"),
        "output": (f"/executions/{failed}?tab=output", "INSERT INTO orders"),
        "why": (f"/executions/{ids['form']}?tab=why", "waits for approval.received"),
        "loop": (f"/executions/{ids['loop']}", "row 3 has no city"),
        "playbooks": ("/playbooks", "invoice"),
        "playbook": ("/playbooks/shop/orders", "Write the orders into the warehouse."),
        "versions": ("/playbooks/shop/orders?against=1", "version 1 → 2"),
        "inbox": ("/inbox", "Pay 4200 to Nordic Paper?"),
        "workers": ("/workers", "pool default"),
        "schedules": ("/schedules", "Schedules and triggers"),
        "hooks": ("/schedules?kind=hooks", "Schedules and triggers"),
        "consumers": ("/schedules?kind=consumers", "Schedules and triggers"),
        "notifications": ("/schedules?kind=notifications", "Schedules and triggers"),
        "compare": (f"/compare?a={done}&b={failed}", "First difference"),
        "admin": ("/admin?part=health", "not configured"),
        "audit": ("/admin?part=audit", "execution.start"),
        "retention": ("/admin?part=retention", "Kept by people"),
        "credentials": ("/admin?part=credentials", "New or replace"),
        "users": ("/admin?part=users", "This server has no users"),
        "tokens": ("/admin?part=tokens", "No token yet."),
        "editor": ("/editor?path=ops/invoice", "No problems"),
        "expression": ("/editor?path=shop/orders&part=expression", "Evaluate"),
        "what if": ("/editor?path=shop/orders&part=what+if", "Compare"),
        "tests": ("/editor?path=shop/orders&part=tests", "Make a test of it"),
    }
