"""Executions worth looking at: for the browser tests, and for the pictures of the documentation."""

from __future__ import annotations

from typing import Any

from tests.server.processes import Server

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: { name: NAME, path: PATH }\n"

ORDERS = """
workload: { region: north, orders: 24, refuse: [] }
workflow:
  - step: start
    desc: Ask the shop how many orders there are.
    tool:
      kind: python
      code: |
        print(f"region {region}: {orders} orders")
        result = [{"id": 1000 + i, "total": 7 * i % 90 + 10, "city": ["Oslo", "Lisbon"][i % 2]}
                  for i in range(orders)]
      args: { orders: "{{ workload.orders }}", region: "{{ workload.region }}" }
    next: collect
  - step: collect
    desc: Check each order.
    loop:
      in: "{{ start }}"
      iterator: order
      spec: { mode: parallel, max_in_flight: 8 }
    tool:
      - name: check
        kind: noop
        result: "{{ iter.order.total }}"
    next:
      arcs:
        - { step: load, when: "{{ event.name == 'loop.done' }}" }
  - step: load
    desc: Write the orders into the warehouse.
    tool:
      - name: insert
        kind: shell
        command: |
          echo "INSERT INTO orders VALUES ..."
          if [ "$REGION" = south ]; then
            echo 'duplicate key value violates "orders_pkey" (23505)' >&2
            exit 3
          fi
        env: { REGION: "{{ workload.region }}" }
        spec:
          policy:
            rules:
              - when: "{{ outcome.status == 'error' }}"
                then: { do: retry, attempts: 3, delay: 100ms }
              - else:
                  then: { do: continue }
    next:
      spec: { mode: exclusive }
      arcs:
        - { step: report, when: "{{ workload.orders > 20 }}" }
        - { step: end }
  - step: report
    desc: Tell people what came in.
    tool: { kind: noop, result: { rows: "{{ workload.orders }}" } }
    next: end
  - step: end
    tool: { kind: noop, result: "{{ workload.orders }} orders of {{ workload.region }}" }
"""

CAUSE = 'duplicate key value violates "orders_pkey" (23505)'
"""Why the one of the south fails."""

INVOICE = """
workload: { amount: 4200, supplier: Nordic Paper }
workflow:
  - step: start
    tool: { kind: noop, result: "{{ workload.amount }}" }
    next: approve
  - step: approve
    spec:
      eval_mode: on_event
      form:
        - name: approved
          type: boolean
          label: "Pay {{ workload.amount }} to {{ workload.supplier }}?"
        - { name: comment, type: text, label: Comment, required: false }
    case:
      - when: "{{ event.name == 'approval.received' and event.data.approved }}"
        then: [{ next: { to: [{ step: pay }] } }]
      - when: "{{ event.name == 'approval.received' }}"
        then: [{ next: { to: [{ step: end }] } }]
  - step: pay
    tool: { kind: noop, result: paid }
    next: end
  - step: end
    tool: { kind: noop }
"""

FLAKY = """
workload: { bad: [3] }
workflow:
  - step: start
    loop:
      in: "{{ range(40) | list }}"
      iterator: n
      spec: { mode: parallel, max_in_flight: 8 }
    tool:
      kind: python
      code: |
        if n in bad:
            raise ValueError(f"row {n} has no city")
        result = n
      args: { n: "{{ iter.n }}", bad: "{{ workload.bad }}" }
"""

SLOW = """
workload: { seconds: 600 }
workflow:
  - step: start
    tool: { kind: noop, result: 1 }
    next: wait
  - step: wait
    tool: { kind: shell, command: "echo waiting; sleep {{ workload.seconds }}" }
    next: end
  - step: end
    tool: { kind: noop }
"""

XSS = (
    "<img src=x onerror=alert(1)>",
    "<script>alert(1)</script>",
    "\"'><svg/onload=alert(1)>",
    "javascript:alert(1)",
    "{{constructor.constructor('alert(1)')()}}",
)
HOSTILE = """
workload: { words: [] }
workflow:
  - step: start
    desc: "<b onmouseover=alert(1)>bold</b>"
    tool:
      kind: python
      code: |
        print(words[0])
        result = {word: word for word in words}
      args: { words: "{{ workload.words }}" }
    next: end
  - step: end
    tool:
      kind: python
      code: |
        raise ValueError(words[1])
      args: { words: "{{ workload.words }}" }
"""

EDITED = """
workload: {total: 7}
workflow:
  - step: start
    tool: { kind: noop }
    next:
      arcs:
      - { step: pay, when: "{{ workload.total > 5 }}" }
      - { step: keep }
  - { step: pay, tool: { kind: noop } }
  - { step: keep, tool: { kind: noop } }
"""

SHORT = """
workflow:
  - step: start
    tool: { kind: shell, command: sleep 2 }
"""

# Documents of other kinds, registered by those who look at them.
NIGHTLY = """
apiVersion: noetl.io/v2
kind: Schedule
metadata: { name: nightly, path: shop/nightly, description: the orders of yesterday }
spec: { playbook: shop/orders, workload: { region: north }, cron: "30 4 * * *" }
"""

HOOK = """
apiVersion: noetl.io/v2
kind: Hook
metadata: { name: paid, path: shop/paid }
spec:
  verify: { hmac: { secret: shop_secret, header: x-signature } }
  target: { playbook: shop/orders }
"""

CONSUMER = """
apiVersion: noetl.io/v2
kind: Consumer
metadata: { name: files_in, path: shop/files_in }
spec:
  source: { files: { url: "file:///nowhere/at/all" } }
  target: { playbook: shop/orders }
"""

NOTIFICATION = """
apiVersion: noetl.io/v2
kind: Notification
metadata: { name: failures, path: ops/failures }
spec:
  on: [failed, late]
  late: 30m
  target: { playbook: noetl/notify/slack, workload: { credential: chat, text: x } }
"""

PLAYBOOKS = {
    "shop/orders": ORDERS,
    "shop/flaky": FLAKY,
    "ops/invoice": INVOICE,
    "ops/slow": SLOW,
}


def register(server: Server, path: str, text: str) -> None:
    head = HEAD.replace("NAME", path.rpartition("/")[2]).replace("PATH", path)
    server.post("/api/catalog/register", {"content": head + text})


def start(server: Server, path: str, **workload: Any) -> str:
    started = server.post("/api/executions", {"path": path, "workload": workload})
    return str(started["execution_id"])


def seeded(server: Server, rounds: int = 1, *, hostile: bool = True) -> dict[str, str]:
    """Executions by what is worth seeing in them; a `hostile` one is not for pictures."""
    for path, text in PLAYBOOKS.items():
        register(server, path, text)
    register(server, "shop/orders", ORDERS.replace("orders: 24", "orders: 25"))
    for _ in range(rounds - 1):
        for region in ("north", "east", "west"):
            start(server, "shop/orders", region=region, orders=18 + rounds)
    found = {
        "done": start(server, "shop/orders", region="north"),
        "failed": start(server, "shop/orders", region="south"),
        "loop": start(server, "shop/flaky"),
        "form": start(server, "ops/invoice"),
        "running": start(server, "ops/slow"),
    }
    if hostile:
        register(server, "bad/hostile", HOSTILE)
        found["hostile"] = start(server, "bad/hostile", words=list(XSS))
    for name in found.keys() & {"done", "failed", "loop", "hostile"}:
        server.ended(found[name])
    return found
