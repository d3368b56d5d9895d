"""`noetl executions follow`: watching what another process runs, through the database."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from noetl.cli.exits import FAILED
from noetl.cli.lines import Telling
from noetl.cli.paint import is_rich
from noetl.cli.printing import say
from noetl.cli.source_lines import Locator

if TYPE_CHECKING:
    from noetl.control.records import Following, Records
    from noetl.model.state import ExecutionState
    from noetl.settings import Settings
    from noetl.store.base import Store

LOOKS_BETWEEN_CHECKS = 5


async def follow(settings: Settings, written: str) -> int:
    """Show an execution until it has ended, or until nobody runs it any more."""
    if settings.server_url is not None:
        from noetl.cli.remote_running import follow_there

        return await follow_there(settings, written)
    from noetl import wiring
    from noetl.cli.running import conclude
    from noetl.control.records import Following, Records

    async with wiring.looking(settings) as store:
        records = Records(store)
        locator = Locator(records, wiring.compiler(settings))
        execution_id = await records.find(written)
        followed = Following(store, execution_id, await records.state(execution_id))
        if is_rich(sys.stderr):
            await _draw(settings, store, records, locator, execution_id, followed)
        else:
            # Until something happens there is nothing else to say.
            about = f"{followed.state.path}, {followed.state.status.lower()}"
            say(f"following execution {execution_id} ({about})")
            await _until_over(settings, followed, Telling(execution_id, locator))
        if not followed.state.is_finished:
            say(
                "no process is running it any more: it was interrupted."
                f" `noetl executions resume {execution_id}` goes on with it."
            )
            return FAILED
        document = await records.document(execution_id)
        return await conclude(document, records, locator, as_json=False)


async def _until_over(
    settings: Settings, followed: Following, telling: Telling | None = None
) -> None:
    """Keep up with it until it has ended or nobody has the database."""
    from noetl import wiring

    looks = 0
    while True:
        rows = await followed.catch_up()
        for row in rows:
            line = await telling.line(row) if telling is not None else None
            if line is not None:
                say(line)
        if followed.state.is_finished:
            return
        if not rows:
            if looks % LOOKS_BETWEEN_CHECKS == 0 and not wiring.is_in_use(settings):
                # Whoever had it may have stored its end just before letting go.
                await followed.catch_up()
                return
            looks += 1
            await followed.pause()


async def _draw(
    settings: Settings,
    store: Store,
    records: Records,
    locator: Locator,
    execution_id: str,
    followed: Following,
) -> None:
    from rich.console import Console

    from noetl.cli.liveview import show_live
    from noetl.cli.running import news_in

    async def state_of(wanted: str) -> ExecutionState:
        return followed.state if wanted == execution_id else await records.state(wanted)

    over = _until_over(settings, followed)
    await show_live(execution_id, state_of, news_in(store), locator, over, Console(stderr=True))
