"""Whose turn it is: pools serve executions one after the other, not commands by their age.

Every command that waits has a turn, and of those with the same priority the lowest goes first. The
first command of an execution has the turn that is being served just now, and each further one the
turn after the one before it. So a thousand commands of one execution wait a thousand turns deep,
and whoever comes after them is served after the first. Nobody waits for ever: no command gets a
turn below the one that is being served, and of each turn an execution has one command.

Executions that were called count as part of the one that called them: a fan-out has one place in
the line, whether it is made of iterations or of executions.

What is known here is this process's view. It learns of other servers' turns from what its workers
claim, from news, and from a look once a second; until then its commands are a little early.
"""

from __future__ import annotations

from noetl.model.ids import ExecutionId

REMEMBERED_MAX = 20_000


class Turns:
    """The turns of each pool, as far as this process knows."""

    def __init__(self) -> None:
        self._served: dict[str, int] = {}
        """The highest turn that was served."""
        self._last: dict[tuple[str, ExecutionId], int] = {}
        """The last turn that each family of executions has taken."""

    def take(self, pool: str, family: ExecutionId) -> int:
        """The turn of the next command of these executions."""
        served = self._served.get(pool, 0)
        turn = self._last[pool, family] = max(served, self._last.pop((pool, family), -1) + 1)
        if len(self._last) > REMEMBERED_MAX:
            self._forget()
        return turn

    def serve(self, pool: str, turn: int) -> None:
        """A command with this turn is being served, here or elsewhere."""
        if turn > self._served.get(pool, 0):
            self._served[pool] = turn

    def served(self, pool: str) -> int:
        return self._served.get(pool, 0)

    def _forget(self) -> None:
        """Let go of those that begin anew anyway, else of half of them, oldest first."""
        self._last = {
            which: turn for which, turn in self._last.items() if turn >= self.served(which[0])
        }
        if len(self._last) > REMEMBERED_MAX // 2:
            self._last = dict(list(self._last.items())[len(self._last) // 2 :])
