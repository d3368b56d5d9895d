"""What the header of an example says about it: valid, or refused and for which reason.

The examples of the source documents are whole playbooks here. Their first lines are comments
that hold the expectation, so that a file and its verdict cannot part:

    # 003 §12: step names are unique
    # verdict: refused
    # problem: duplicate-step 17:11
    # note: why, where documents differ

`warning` has the form of `problem`. Problems are errors; warnings do not decide the verdict.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent

_TITLE = re.compile(r"# (?P<text>\d{3} .+: .+)")
_FIELD = re.compile(r"# (?P<key>verdict|problem|warning|note): (?P<text>.+)")
_FINDING = re.compile(r"(?P<code>[a-z][a-z-]*) (?P<line>\d+):(?P<column>\d+)")


@dataclass(frozen=True, order=True)
class Finding:
    """A problem or warning the compiler must give, and where. Both places count from 1."""

    code: str
    line: int
    column: int


@dataclass(frozen=True)
class Verdict:
    """An example and what must become of it."""

    path: Path
    title: str
    valid: bool
    problems: tuple[Finding, ...]
    """Exactly the errors of a refused example; none for a valid one."""
    warnings: tuple[Finding, ...] = ()
    """Exactly the warnings."""
    note: str = ""

    @property
    def document(self) -> str:
        """The number of the source document."""
        return self.path.name[:3]

    @property
    def text(self) -> str:
        """The playbook, header included: the places count from the first line."""
        return self.path.read_text(encoding="utf-8")


def all_verdicts() -> list[Verdict]:
    """Every example, in the order of documents and sections."""
    return [read(path) for path in sorted(HERE.glob("*.yaml"))]


def read(path: Path) -> Verdict:
    """The verdict in the header of this file."""
    return parse(path, path.read_text(encoding="utf-8"))


def parse(path: Path, text: str) -> Verdict:
    """The verdict in the header of this text; a header that says nothing clear is an error."""
    first, *rest = text.splitlines() or [""]
    title = _TITLE.fullmatch(first)
    if title is None:
        raise ValueError(f'{path}:1: "{first}" is not a title. Write "# 003 §12: what it shows".')
    fields: dict[str, list[str]] = {"verdict": [], "problem": [], "warning": [], "note": []}
    for line in rest:
        field = _FIELD.fullmatch(line)
        if field is None:
            break
        fields[field["key"]].append(field["text"])
    if fields["verdict"] not in (["valid"], ["refused"]):
        raise ValueError(f'{path}: needs one line "# verdict: valid" or "# verdict: refused".')
    valid = fields["verdict"] == ["valid"]
    if valid == bool(fields["problem"]):
        raise ValueError(f"{path}: problems belong to refused examples, and each has at least one.")
    return Verdict(
        path=path,
        title=title["text"],
        valid=valid,
        problems=tuple(_finding(path, text) for text in fields["problem"]),
        warnings=tuple(_finding(path, text) for text in fields["warning"]),
        note=" ".join(fields["note"]),
    )


def _finding(path: Path, text: str) -> Finding:
    found = _FINDING.fullmatch(text)
    if found is None:
        raise ValueError(f'{path}: "{text}" is not of the form "unknown-step 14:5".')
    return Finding(found["code"], int(found["line"]), int(found["column"]))
