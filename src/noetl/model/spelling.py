"""One way to guess what a misspelt word was meant to be, so that all messages agree."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches

WORD_MAX = 64
KNOWN_MAX = 1000
STEPS_NAMED = 20


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Give ` Did you mean "x"?` for the known word nearest to `word`, or nothing at all.

    Meant to be added to a finished sentence.
    """
    near = nearest(word, known)
    return f' Did you mean "{near}"?' if near else ""


def no_such_step(step: str, steps: Collection[str], path: str = "") -> str:
    """Say that a playbook has no such step, and which one may be meant."""
    few = list(steps)[:STEPS_NAMED]
    more = ", …" if len(steps) > len(few) else ""
    hint = did_you_mean(step, steps) or f" Its steps: {', '.join(few)}{more}."
    return f'{f"the playbook {path}".rstrip()} has no step "{step}".{hint}'


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word nearest to `word`; empty if none is near.

    Long words and long lists are not searched: they are data rather than typing mistakes, and the
    search would cost more than the hint is worth.
    """
    if not word or len(word) > WORD_MAX:
        return ""
    candidates = [name for _, name in zip(range(KNOWN_MAX), known, strict=False) if name != word]
    folded = {name.lower(): name for name in reversed(candidates) if len(name) <= WORD_MAX}
    near = get_close_matches(word.lower(), folded, n=1, cutoff=0.6)
    return folded[near[0]] if near else ""


def is_slip(word: str, known: Iterable[str]) -> bool:
    """Whether one slip of the keyboard makes one of the known words of this one.

    A letter too many, too few or wrong, or two that changed places; in long words two of these.
    Far stricter than `nearest`: for places where any other word is allowed as well.
    """
    folded = word.lower()
    return any(_slips(folded, one) <= (1 if len(one) < LONG_WORD else 2) for one in known)


LONG_WORD = 8


def _slips(word: str, other: str) -> int:
    """How many slips lie between two words."""
    if abs(len(word) - len(other)) > 2:
        return 3
    before: list[int] = []
    row = list(range(len(other) + 1))
    for at, letter in enumerate(word, 1):
        before, above, row = row, before, [at]
        for col, wanted in enumerate(other, 1):
            cost = min(before[col] + 1, row[-1] + 1, before[col - 1] + (letter != wanted))
            if at > 1 and col > 1 and letter == other[col - 2] and word[at - 2] == wanted:
                cost = min(cost, above[col - 2] + 1)
            row.append(cost)
    return row[-1]
