"""How fast executions run here: W1–W7 of `noetl bench`, on this working tree.

Run `python bench/workloads.py [--json] [--runs N] [--db FILE | --postgres]`. Medians; the time of a
bare flush to the same disk stands beside them, because on most machines it is what they consist of.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from pathlib import Path

from postgres import server_in

from noetl.cli.workloads import figures, machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--db", help="where to keep the database; default: a temporary directory")
    parser.add_argument("--postgres", action="store_true", help="on PostgreSQL instead of SQLite")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.postgres:
            with server_in(folder) as url:
                found = asyncio.run(figures(folder, url, options.runs))
        else:
            url = f"sqlite:///{options.db or folder / 'bench.db'}"
            found = asyncio.run(figures(folder, url, options.runs))
    if options.json:
        print(json.dumps({"machine": machine(), "figures": found}, indent=2))
        return
    for key, value in found.items():
        print(f"{key:28} {value:12,.2f}")


if __name__ == "__main__":
    main()
