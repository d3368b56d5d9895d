"""Every problem code there is. Codes are a promise: scripts match on them, so none is renamed.

`docs/problems.md` says what each means, with an example and its remedy; a test keeps both together.
"""

from __future__ import annotations

from noetl.model.problems import Severity

ERRORS = (
    # The text.
    *("yaml-syntax", "yaml-duplicate-key", "yaml-too-large", "yaml-too-deep", "yaml-alias-limit"),
    *("yaml-alias-cycle", "yaml-tag", "yaml-many-documents", "yaml-key", "yaml-value"),
    "not-a-playbook",
    # How a piece is written.
    *("unknown-key", "removed-key", "missing-key", "wrong-type", "bad-value", "conflicting-keys"),
    *("unsupported-version", "wrong-kind", "bad-name", "reserved-name"),
    # What no single piece shows.
    *("code-syntax", "duplicate-step", "duplicate-task", "duplicate-keychain", "duplicate-field"),
    "no-entry-step",
    *("unknown-step", "unknown-task", "unknown-workbook-task", "loop-incomplete", "unknown-tool"),
    *("empty-step", "control-out-of-place", "policy-out-of-place", "misplaced-else", "bad-rule"),
    *("empty-rules", "join-impossible", "partition-without-each", "sink-without-tool"),
    *("cursor-in-workbook", "bad-schema", "bad-call"),
    # Templates.
    *("template-syntax", "template-unsupported", "template-too-large", "unknown-filter"),
    *("unknown-test", "unknown-function", "not-in-scope", "secret-outside-tool"),
    # Documents that start playbooks.
    *("bad-cron", "unknown-timezone"),
)
WARNINGS = (
    *("root-hoisted", "older-form", "hint-ignored", "unused-key", "label-not-kept"),
    *("unknown-schema", "parallel-ctx-write", "condition-is-text", "template-in-code"),
    *("unreachable-step", "shadowed-arc", "endless-cycle", "join-never-completes"),
    *("guarded-name", "unknown-name", "not-run-yet", "undefined-key", "never-equal"),
    "keys-for-items",
    "error-falls-through",
    *("undeclared-keychain", "limit-applied", "wait-never-ends", "not-waiting", "sugar-unbounded"),
    *("time-in-gap", "playbook-is-a-file"),
)
CODES: dict[str, Severity] = {
    **dict.fromkeys(ERRORS, "error"),
    **dict.fromkeys(WARNINGS, "warning"),
}
