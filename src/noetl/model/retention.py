"""How long executions are kept after their end: `90d, shop/=30d, failed=180d, shop/:failed=7d`."""

from __future__ import annotations

import msgspec

from noetl.model.duration import seconds

FOREVER = "forever"
FAILED = "failed"


class KeepRule(msgspec.Struct, frozen=True):
    """For executions whose path begins with `prefix`, or for those of them that failed."""

    prefix: str
    failed: bool
    seconds: float | None
    """None: for ever."""

    @property
    def written(self) -> str:
        """The executions that it applies to, as people write it; empty for all."""
        return ":".join(part for part in (self.prefix, FAILED if self.failed else "") if part)


class Keep(msgspec.Struct, frozen=True):
    """Of the rules that fit an execution, the one with the longest path counts; of two with the
    same path, the one that names failures. Where none fits, an execution is kept for ever.
    """

    rules: tuple[KeepRule, ...] = ()
    """The most particular first."""

    @property
    def longest(self) -> float | None:
        """The longest time that one is kept, in seconds; None if some are kept for ever."""
        if not any(rule.prefix == "" and not rule.failed for rule in self.rules):
            return None
        kept = [rule.seconds for rule in self.rules if rule.seconds is not None]
        return max(kept) if len(kept) == len(self.rules) else None

    def rule_for(self, path: str, status: str) -> KeepRule | None:
        for rule in self.rules:
            if path.startswith(rule.prefix) and (status == "FAILED" or not rule.failed):
                return rule
        return None


def keep_rules(text: str) -> Keep:
    """Read the rules. Raises ValueError that says what is wrong."""
    found: dict[str, KeepRule] = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        what, equals, length = part.rpartition("=")
        what, length = what.strip(), length.strip()
        if equals and not what:
            raise ValueError(f'"{part}" names no path before the "="')
        prefix, colon, kind = what.rpartition(":")
        if not colon and what == FAILED:
            prefix, kind = "", FAILED
        elif not colon:
            prefix, kind = what, ""
        if kind not in ("", FAILED):
            raise ValueError(f'"{part}": after the ":" comes `{FAILED}`')
        kept = None if length == FOREVER else seconds(length)
        if length != FOREVER and not kept:
            raise ValueError(f'"{length}" is not a duration such as 90d or 12h, nor `{FOREVER}`')
        rule = KeepRule(prefix, bool(kind), kept)
        if rule.written in found:
            raise ValueError(f'"{rule.written or part}" is said twice')
        found[rule.written] = rule
    order = sorted(found.values(), key=lambda rule: (-len(rule.prefix), not rule.failed))
    return Keep(tuple(order))
