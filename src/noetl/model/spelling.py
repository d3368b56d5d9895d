"""One way to guess what a misspelt word was meant to be, so that all messages agree."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

WORD_MAX = 64
KNOWN_MAX = 1000


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Give ` Did you mean "x"?` for the known word nearest to `word`, or nothing at all.

    Meant to be added to a finished sentence.
    """
    near = nearest(word, known)
    return f' Did you mean "{near}"?' if near else ""


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
