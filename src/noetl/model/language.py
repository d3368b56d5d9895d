"""Answers to questions about a playbook that is being written."""

from __future__ import annotations

from typing import Any, Literal

from noetl.model.answers import Document, Layout
from noetl.model.problems import Problem


class OfferDocument(Document, frozen=True):
    """A completion: something that may be written at a place."""

    text: str
    kind: Literal["key", "value", "step", "name", "filter", "test", "function"]
    about: str


class AboutDocument(Document, frozen=True):
    """What the word at a place means."""

    text: str
    """In Markdown."""
    word: str
    column: int
    """Where the word begins, from 1."""


class RemarkDocument(Document, frozen=True, kw_only=True):
    """Something that a migration changed, or left as it was."""

    line: int
    message: str
    changed: bool


class LanguageDocument(Document, frozen=True, kw_only=True):
    """Help while a playbook is written; what was not asked for is empty."""

    completions: list[OfferDocument] = []
    hover: AboutDocument | None = None
    problems: list[Problem] = []
    value: Any = None
    layout: Layout | None = None
    """With the problems: the graph, if the text is a playbook."""
    text: str | None = None
    """The whole text, formatted or migrated."""
    remarks: list[RemarkDocument] = []
    """Of a migration."""
