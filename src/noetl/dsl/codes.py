"""Every problem code there is. Codes are a promise: scripts match on them, so none is renamed.

`docs/problems.md` shows this table to people; a test keeps the two together.
"""

from __future__ import annotations

import msgspec

from noetl.model.problems import Severity


class Code(msgspec.Struct, frozen=True):
    """What a code means, in one sentence for the documentation."""

    severity: Severity
    meaning: str


def _errors(**meanings: str) -> dict[str, Code]:
    return {name.replace("_", "-"): Code("error", text) for name, text in meanings.items()}


def _warnings(**meanings: str) -> dict[str, Code]:
    return {name.replace("_", "-"): Code("warning", text) for name, text in meanings.items()}


READING = _errors(
    yaml_syntax="The text is not YAML.",
    yaml_duplicate_key="A key is there twice in one mapping.",
    yaml_too_large="The document has more bytes than are read.",
    yaml_too_deep="The document is nested too deeply.",
    yaml_alias_limit="Written out, the aliases make the document too large.",
    yaml_alias_cycle="An alias inside the node that it refers to.",
    yaml_tag="A YAML tag other than the plain ones.",
    yaml_many_documents="More than one document in a file.",
    yaml_key="A key that is not a plain text; often a template without quotes.",
    yaml_value="A number that JSON cannot carry: infinite, not a number, beyond 64 bits.",
    not_a_playbook="The document is empty or not a mapping.",
)

SHAPE = _errors(
    unknown_key="A key that has no meaning here.",
    removed_key="A key of an earlier language; the message names its replacement.",
    missing_key="A key that must be there is not.",
    wrong_type="A value of the wrong kind, e.g. a list where a text belongs.",
    bad_value="A value that is not one of those allowed here.",
    conflicting_keys="Two spellings of the same thing, or two things that exclude each other.",
    unsupported_version="An apiVersion other than noetl.io/v2.",
    wrong_kind="A document of a kind that does not exist, or of another kind than is wanted.",
    bad_name="A name that templates could not refer to.",
    reserved_name="A name that already means something in templates.",
) | _warnings(
    root_hoisted="`name` or `path` at the root; they belong in `metadata`.",
    older_form="An older way to write something; it is read as today's, which the message names.",
    hint_ignored="A key that is accepted and has no effect here.",
    label_not_kept="A label of the playbook that its executions cannot have.",
)

RULES = _errors(
    code_syntax="Program text that its language does not understand.",
    duplicate_step="Two steps of one name.",
    duplicate_task="Two tasks of one name in a pipeline, or two workbook entries.",
    duplicate_keychain="Two keychain entries of one name.",
    no_entry_step="`executor.spec.entry_step` names no step, or there are no steps.",
    unknown_step="A token is sent to a step that does not exist.",
    unknown_task="A jump or compensation names a task that does not exist.",
    unknown_workbook_task="A task refers to a workbook entry that does not exist.",
    loop_incomplete="A loop without collection or without iterator.",
    unknown_tool="A tool kind that is neither built in nor provided by a plug-in.",
    empty_step="A step with none of `tool`, `next`, `case`.",
    control_out_of_place="A control action (`do`) outside task policy rules.",
    policy_out_of_place="A policy of one scope written in another.",
    misplaced_else="An `else` that is not the last rule, or a second one.",
    bad_rule="A rule with neither `when` nor `else`, with both, or without `then`.",
    empty_rules="A policy without rules.",
    join_impossible="A join that no number of tokens can satisfy.",
    partition_without_each="An arc that partitions its tokens, to a step that joins them.",
    sink_without_tool="A `sink` of a step that has no tool whose result it could store.",
    cursor_in_workbook="A workbook entry that loops over a `cursor`.",
    bad_schema="A schema of a result that cannot be used.",
    bad_call="A call of a playbook with inputs that it does not take, or without one it needs.",
) | _warnings(
    unknown_schema="A schema that is named and not known here.",
    parallel_ctx_write="Iterations of a parallel loop write the same ctx key without a reducer.",
)

TEMPLATES = _errors(
    template_syntax="The template is not Jinja.",
    template_unsupported="Jinja, but not part of the expression language.",
    template_too_large="The template is too long or nested too deeply.",
    unknown_filter="A filter that does not exist.",
    unknown_test="A test (`is …`) that does not exist.",
    unknown_function="A function that does not exist.",
) | _warnings(
    condition_is_text="A condition without `{{ }}`: a text, which is always the same.",
    template_in_code="A template inside program text, where a bound value would be safer.",
)

ANALYSIS = _errors(
    not_in_scope="A name that exists elsewhere, but not where it is used.",
    secret_outside_tool="A secret read outside a tool's config.",
) | _warnings(
    unreachable_step="No token can ever reach the step.",
    shadowed_arc="An earlier arc without guard always wins.",
    endless_cycle="A cycle of steps without an exit.",
    join_never_completes="A join that waits for a token that cannot come.",
    guarded_name="A reserved name that does not exist here; a guard answers for it each time.",
    unknown_name="A name that is never defined anywhere in the playbook.",
    undefined_key="A key that the workload, the args or the known result of a step does not have.",
    error_falls_through="An error that no rule names would continue as if nothing had happened.",
    undeclared_keychain="A keychain entry that is not declared under `keychain`, or an `auth` that"
    " is spelt almost like an entry and may be a stored credential.",
    limit_applied="More is asked for than a limit allows; the limit holds.",
    wait_never_ends="A step that waits for the world, and no rule of it ends the wait.",
    not_waiting="`timers`, `form` or `match` on a step that does not wait.",
    sugar_unbounded="`while` or `until` without `max`; the default bound applies.",
)

TRIGGERS = _errors(
    bad_cron="A cron expression that is none, or that no day is like.",
    unknown_timezone="A time zone that the IANA database does not have.",
) | _warnings(
    time_in_gap="A time that the clock of its zone skips when summer time begins.",
)

CODES: dict[str, Code] = READING | SHAPE | RULES | TEMPLATES | ANALYSIS | TRIGGERS
