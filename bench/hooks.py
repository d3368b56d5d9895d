"""What strangers cost: deliveries to a hook whose signature is wrong.

Each has a body and a signature of its own. They come over connections that stay, and over one new
connection each, as those of many senders do. The processor time is that of the server alone, so it
says something on a busy machine, too.

Run `python bench/hooks.py [--json] [--count N] [--directory DIR]`. Exits with 1 if the server would
refuse less than 2 000 of them in a second of its processor time.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import hmac
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

from cluster import asked_through, process, processor_seconds

from noetl.cli.workloads import HEAD, chain, machine

AT_A_TIME = 8
PER_SECOND_MIN = 2_000
HOOK = HEAD.replace("Playbook", "Hook").replace("bench/bench", "bench/hook") + (
    "spec: {verify: {github: {secret: shared}}, target: {playbook: bench/bench}}\n"
)


def delivery(number: int) -> bytes:
    """A push, as GitHub sends it, signed with another secret."""
    push = {"ref": "refs/heads/main", "number": number, "repository": {"name": "x" * 200}}
    body = json.dumps(push).encode()
    signature = hmac.new(b"guessed", body, hashlib.sha256).hexdigest()
    head = (
        "POST /hooks/bench/hook HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"X-GitHub-Delivery: {number}\r\nX-Hub-Signature-256: sha256={signature}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def refused(port: int, deliveries: list[bytes], *, anew: bool) -> None:
    """Send one after the other; with `anew` each over a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for one in deliveries:
        if anew:
            writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(one)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 401"), head
        length = next(line for line in head.lower().split(b"\r\n") if b"content-length" in line)
        await reader.readexactly(int(length.partition(b":")[2]))
    writer.close()


async def figures(folder: Path, count: int) -> dict[str, float]:
    key = base64.b64encode(os.urandom(32)).decode()
    found: dict[str, float] = {}
    with process(folder, "server", "start", "--port", "0", NOETL_SECRET_KEY=key) as (url, pid):
        async with asked_through(1) as session:
            secret = {"name": "shared", "data": {"secret": "known to both"}}
            for path, body in (
                ("credentials", secret),
                ("catalog/register", {"content": chain(1)}),
                ("catalog/register", {"content": HOOK}),
            ):
                async with session.post(f"{url}/api/{path}", json=body) as answer:
                    answer.raise_for_status()
        port = urlsplit(url).port or 0
        share = count // AT_A_TIME
        for name, anew in (("warm", False), ("kept", False), ("anew", True)):
            work = [
                [delivery(place * share + number) for number in range(share)]
                for place in range(AT_A_TIME)
            ]
            used, begin = processor_seconds([pid]), time.perf_counter()
            await asyncio.gather(*(refused(port, part, anew=anew) for part in work))
            seconds, wall = processor_seconds([pid]) - used, time.perf_counter() - begin
            if name != "warm":
                done = share * AT_A_TIME
                found[f"refused_{name}_us"] = 1e6 * seconds / done
                found[f"refused_{name}_per_processor_second"] = done / seconds
                found[f"refused_{name}_per_second"] = done / wall
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--count", type=int, default=8_000)
    parser.add_argument("--directory", help="on the disk that counts; default: a temporary one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        found = asyncio.run(figures(Path(name), options.count))
    if options.json:
        print(json.dumps({"machine": machine(), "figures": found}, indent=2))
    else:
        for key, value in found.items():
            print(f"{key:36} {value:12,.0f}")
    if min(found[f"refused_{name}_per_processor_second"] for name in ("kept", "anew")) < (
        PER_SECOND_MIN
    ):
        sys.exit(1)


if __name__ == "__main__":
    main()
