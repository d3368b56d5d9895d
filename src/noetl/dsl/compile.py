"""YAML text → the net, or everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set

import msgspec

from noetl.dsl import nodes
from noetl.dsl.analysis import ANALYSES
from noetl.dsl.building import Building, Known
from noetl.dsl.checks import CHECKS, check_document, is_of_another_kind, is_of_another_program
from noetl.dsl.grammar import Inspection
from noetl.dsl.older import OLDER, read_older_forms
from noetl.dsl.playbook import WrittenPlaybook, build
from noetl.dsl.read import read
from noetl.dsl.report import Report
from noetl.dsl.scoping import check_templates, check_writes
from noetl.dsl.walk import called_playbooks
from noetl.errors import PlaybookRejected
from noetl.model.net import Limits, Net, ResultSchema, digest
from noetl.model.problems import Place, Problem
from noetl.model.toolshape import ToolShape
from noetl.model.triggers import Schema, Trigger


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """The result of compiling a text."""

    net: Net | None
    """None if there was an error, or if it is not a playbook."""
    trigger: Trigger | None = None
    """The compiled document of any other kind."""
    digest: str = ""
    problems: tuple[Problem, ...] = ()
    debug: Mapping[str, Place] = {}
    """Generated task label (`step.task`) → the place of the sugar it was generated from."""
    code_lines: Mapping[str, int] = {}
    """Task (`step.task`) → the line of the text at which its code begins."""
    unresolved: Mapping[str, Place] = {}
    """Unknown schemas that it names; it cannot run without them."""
    absent: Mapping[Place, Set[str]] = {}
    """Template → reserved names that are undefined there, read with `default` or `is defined`."""

    @property
    def is_valid(self) -> bool:
        return self.net is not None or self.trigger is not None

    def unwrap(self) -> Net:
        """The net, or PlaybookRejected with the problems."""
        if self.net is None:
            raise PlaybookRejected(self.problems)
        if self.unresolved:
            raise PlaybookRejected(
                tuple(
                    msgspec.structs.replace(one, severity="error")
                    for one in self.problems
                    if one.code == "unknown-schema"
                )
            )
        return self.net


def compile_text(
    text: str,
    *,
    tools: Mapping[str, ToolShape],
    limits: Limits | None = None,
    strict: bool = False,
    known: Known | None = None,
) -> Compiled:
    """Compile a playbook. Never raises for bad input: the problems say what is wrong.

    `tools` are the kinds that exist; `limits` are the operator's, which nothing in the playbook
    can exceed. `strict` refuses older forms instead of reading them with a warning. `known` are
    documents that the playbook may name.
    """
    report = Report(refused=OLDER if strict else frozenset())
    root = read(text, report)
    if root is None:
        return Compiled(net=None, problems=report.problems(None))
    if is_of_another_kind(report, root) or is_of_another_program(report, root):
        return Compiled(net=None, problems=report.problems(root))
    read_older_forms(root, report, tools)
    look = Inspection(report, tools)
    written = WrittenPlaybook.shape.read(root, "a playbook", look)
    building = Building(look, limits or Limits(), text, known)
    check_document(building, written)
    net = build(building, written)
    for check in CHECKS:
        check(building, net)
    check_templates(building, net)
    check_writes(building, net)
    if not report.has_errors:
        # Warnings about the flow of an invalid net would only distract.
        for analysis in ANALYSES:
            analysis(building, net)
    problems = report.problems(root)
    if report.has_errors:
        return Compiled(net=None, problems=problems, debug=building.debug)
    return Compiled(
        net=net,
        digest=digest(net),
        problems=problems,
        debug=building.debug,
        code_lines=building.code_lines,
        absent=building.absent,
        unresolved=building.unresolved,
    )


def step_lines(text: str) -> dict[str, int]:
    """The line at which each step begins, as far as the text can be read."""
    found: dict[str, int] = {}
    for step in nodes.items(nodes.field(read(text, Report()), "workflow")):
        if isinstance(name := nodes.field(step, "step"), nodes.Scalar):
            found.setdefault(name.text, step.place.line)
    return found


def compile_beside(
    written: str, compiler: Callable[..., Compiled], neighbours: Mapping[str, str]
) -> Compiled:
    """Compile a document with the `neighbours` (path → text) that it names."""
    compiled = compiler(written)
    wanted = called_playbooks(compiled.net) if compiled.net is not None else set()
    playbooks = {
        path: found
        for path in sorted(wanted)
        if path in neighbours and (found := compiler(neighbours[path]).net) is not None
    }
    schemas = _schemas(neighbours, {path for path in compiled.unresolved if path in neighbours})
    if not playbooks and not schemas:
        return compiled
    return compiler(written, known=Known(playbooks=playbooks, schemas=schemas))


def _schemas(neighbours: Mapping[str, str], paths: Set[str]) -> dict[str, ResultSchema]:
    if not paths:
        return {}
    # Most playbooks name no document of another kind, and `noetl run` starts sooner without them.
    from noetl.dsl.triggers import compile_document

    return {
        path: ResultSchema(schema=document.schema, name=path)
        for path in sorted(paths)
        if isinstance(document := compile_document(neighbours[path], tools={}).trigger, Schema)
    }
