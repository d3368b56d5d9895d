"""
Every error a caller of this package can meet:

* NoetlError
  + PlaybookRejected       the YAML is not a playbook; carries the list of problems   (author)
  + EvaluationFailed       a template could not be evaluated                          (author)
    - UndefinedValue       it needs a value that is not there
    - BudgetExceeded       it would take too long or too much memory
  + NotFound               no playbook, execution, step or credential of that name    (caller)
  + Conflict               someone else got there first; reading again is safe        (nobody)
    - LeaseLost            the lease lapsed; the command belongs to another worker
    - Finished             the execution has ended and cannot change any more
  + StoreError             the database failed; the message says how                  (operator)
    - Corrupted            the stored data is not what was written
    - StoreBusy            it is in use by another process, or out of reach
    - StoreFull            its disk is full
  + BadRequest             the request is invalid; the message names the field        (caller)
    - TooLarge             the body is larger than the route reads
    - Compressed           the body is compressed, and bodies are read as they are
    - BadText              a text holds a character that no database keeps
    - UnknownKey           there is no such key; it may be misspelt
    - BadQuery             a query of executions cannot be read
    - KeyReused            the same Idempotency-Key came with another request
    - SignalRefused        the execution takes no such event, or the answer no such field
  + NotAllowed             the caller's roles do not allow this                       (caller)
    - Unauthenticated      not signed in
    - TooMany              too many attempts; wait a little
  + Unreachable            no server answers                                          (operator)
    - Unsent               nor has any received the request
  + WrongKey               credentials were encrypted with another key                (operator)
  + BadSetting             an environment variable has an unusable value              (operator)
  + PluginRejected         an installed tool plug-in cannot be used                   (operator)

`code` is stable and safe to match on; the text is for people and says what to do next.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

    from noetl.model.problems import Problem

RETRY_SECONDS = 10
"""How long a refused caller waits before another attempt, where nothing says otherwise."""
UNKNOWN_AUTHORITY = range(18, 22)
"""What OpenSSL says of a certificate that signed itself, or whose signer it does not know."""


class NoetlError(Exception):
    """Base of all errors that this package raises on purpose."""

    code = "error"


class PlaybookRejected(NoetlError):
    """The text is not a valid playbook; `problems` lists everything that is wrong."""

    code = "playbook_rejected"

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        errors = [problem for problem in problems if problem.severity == "error"]
        super().__init__("\n".join(str(problem) for problem in errors))
        self.problems = problems


class EvaluationFailed(NoetlError):
    """A template could not be evaluated with the values at hand."""

    code = "evaluation_failed"


class UndefinedValue(EvaluationFailed):
    """A value was needed that does not exist."""

    code = "undefined_value"


class BadCollection(EvaluationFailed):
    """A loop was to go over something that is no collection, or that has no end."""

    code = "bad_collection"


class BudgetExceeded(EvaluationFailed):
    """An evaluation was stopped because it would cost too much time or memory."""

    code = "budget_exceeded"


class WrongKey(NoetlError):
    """The key that credentials were encrypted with is not the one at hand, or is not usable.

    Bring back the key file or NOETL_SECRET_KEY that was in use. Nothing was changed.
    """

    code = "wrong_key"


class BadSetting(NoetlError):
    """An environment variable holds a value that its setting cannot take."""

    code = "bad_setting"


class PluginRejected(NoetlError):
    """An installed tool plug-in does not load, is not a tool, or takes a kind that is taken."""

    code = "plugin_rejected"


class NotFound(NoetlError):
    """Not found."""

    code = "not_found"


class Conflict(NoetlError):
    """Someone else got there first. Nothing was changed; read again and decide again."""

    code = "conflict"


class Unanswered(Conflict):
    """The process that holds the database did not answer. Nothing was done."""

    code = "unanswered"


class LeaseLost(Conflict):
    """The lease lapsed or was taken over. Drop the result: the other worker will report."""

    code = "lease_lost"


class Finished(Conflict):
    """The execution has ended, and a final status is never overwritten."""

    code = "finished"


class StoreError(NoetlError):
    """The database failed."""

    code = "store_error"


class Corrupted(StoreError):
    """The stored data is not what was written. This execution is not served; others are."""

    code = "corrupted"


class StoreBusy(StoreError):
    """The database is in use by another process, or out of reach. Nothing was lost: try again."""

    code = "store_busy"


class StoreFull(StoreError):
    """The disk of the database is full. Nothing was lost; free some space and try again."""

    code = "store_full"


class BadRequest(NoetlError):
    """The request is invalid; the message names the field."""

    code = "bad_request"


class BadInputs(BadRequest):
    """The workload does not match the inputs that the playbook declares; nothing was started."""

    code = "bad_inputs"

    def __init__(self, message: str, problems: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems


class TooLarge(BadRequest):
    """The body is larger than the route reads."""

    code = "too_large"


class Compressed(BadRequest):
    """The body is compressed; bodies are read as they are."""

    code = "compressed"


class SecretInFile(BadRequest):
    """A file to be kept contains a secret and has a format that cannot be masked."""

    code = "secret_in_file"


class BadText(BadRequest):
    """A text holds the character NUL, which databases do not keep. Nothing was changed."""

    code = "bad_text"


class UnknownKey(BadRequest):
    """A key of the query or the body that is not known there. Nothing was done."""

    code = "unknown_key"


class BadQuery(BadRequest):
    """A query of executions cannot be read. `at` and `length` are the place in its text."""

    code = "bad_query"

    def __init__(self, message: str, *, at: int = 0, length: int = 0) -> None:
        super().__init__(message)
        self.at = at
        self.length = length


class KeyReused(BadRequest):
    """An Idempotency-Key stands for one request, and this is another. Nothing was started."""

    code = "idempotency_key_reused"


class SignalRefused(BadRequest):
    """The execution does not accept this event. Nothing was changed."""

    code = "signal_refused"


class NotAllowed(NoetlError):
    """The caller's roles do not allow this."""

    code = "not_allowed"


class Unauthenticated(NotAllowed):
    """Not signed in."""

    code = "unauthenticated"


class TooMany(NotAllowed):
    """Too many attempts in a short time; wait a little."""

    code = "too_many"

    def __init__(self, message: str, seconds: int = RETRY_SECONDS) -> None:
        super().__init__(message)
        self.seconds = seconds
        """How long to wait before the next attempt."""


class Unreachable(NoetlError):
    """No server answers. It may or may not have done the request."""

    code = "unreachable"


class Unsent(Unreachable):
    """No server could be connected to, so none has done the request."""


def reason_of(error: OSError) -> str:
    """Why the system refused, in its own words. asyncio puts others into `strerror`, with the
    address and without the reason.
    """
    import ssl

    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {distrust(error)}"
    number = error.errno or 0
    if number > 0 and not isinstance(error, ssl.SSLError):
        return os.strerror(number).lower()
    return error.strerror or str(error) or type(error).__name__


def distrust(error: ssl.SSLCertVerificationError, named: str = "in SSL_CERT_FILE") -> str:
    """Why a certificate is not trusted and, if no known authority signed it, where one's own is
    named.
    """
    if error.verify_code not in UNKNOWN_AUTHORITY:
        return error.verify_message
    return f"{error.verify_message}; if an authority of your own signed it, name its file {named}"
