"""Translate psycopg errors into perdure errors, and decide which of them to retry.

Server messages are repeated, because operators search for them; passwords never are. Unknown errors
become UnavailableError with the server's text.
"""

import time
from copy import copy
from typing import Literal, NamedTuple, NoReturn

import psycopg

from perdure import events
from perdure.backends.postgres.address import ALLOWED_VALUES, PostgresAddress
from perdure.errors import DamagedError, PerdureError, UnavailableError, UnstorableError

FIRST_PAUSE = 0.02  # seconds before the second retry; the first one is immediate

LONGEST_PAUSE = 1.0  # seconds; a restarted server is found about this fast

ANSWER_TIMEOUT_MIN = 2.0  # seconds; minimum time to answer, however close the caller's deadline is


RetryKind = Literal["lost", "retry", "final"]


class AnswerTimeoutError(psycopg.OperationalError):
    """The server did not answer in time."""


class BlockedError(AnswerTimeoutError):
    """As AnswerTimeoutError, but the server is reachable: something blocked the statement."""


class _Hint(NamedTuple):
    reason: str
    hint: str


# By SQLSTATE; the full code (5 characters) is looked up before its class (2 characters).
_STATE_HINTS = {
    "08": _Hint("the connection failed", "check that the server is running and reachable"),
    "25006": _Hint(
        "the server is read-only, perhaps a standby",
        "connect to the primary, for example with ?target_session_attrs=read-write",
    ),
    "28": _Hint("the server refused the login", "check the user and the password"),
    "3D000": _Hint("the database does not exist", "create it, or correct the address"),
    "3F000": _Hint("the schema is missing", "run: perdure migrate ADDRESS"),
    "42501": _Hint(
        "this user lacks a privilege",
        "grant it usage on the schema, and select, insert, update, delete on its tables",
    ),
    "42P01": _Hint(
        "a table is missing",
        "run: perdure migrate ADDRESS; if that changes nothing, restore the schema from a backup",
    ),
    "40": _Hint("concurrent transactions kept conflicting", "try again later"),
    "53100": _Hint("the server's disk is full", "free space there, then try again"),
    "53200": _Hint("the server is out of memory", "try again later"),
    "53300": _Hint(
        "the server has too many connections",
        "use a pooler, raise max_connections, or allow each process fewer: ?connections=2",
    ),
    "53": _Hint("the server lacks resources", "check its log, then try again"),
    "55P03": _Hint("a lock was held for too long", "try again later"),
    "57014": _Hint("the server canceled the statement", "raise its statement_timeout"),
    "57": _Hint(
        "the server was stopped or is starting",
        "try again later; if it persists, check the server's log",
    ),
    "58": _Hint("the server's disk failed", "check its log"),
}


_ROW_SECURITY = _Hint(
    "row-level security does not allow this user to write there",
    "open the store with the tenant named like the user: ?tenant=USER",
)


_UNTRUSTED_CERTIFICATE = _Hint(
    "the server's certificate was not accepted",
    "check the host name in the address, and that ?sslrootcert= names the CA that signed it",
)


_WRONG_ROLE = _Hint(
    "the server does not have the role that the address requires",
    "correct its hosts or ?target_session_attrs=",
)


# A pooler reports every error with one SQLSTATE, or with text alone.
_POOLER_STATES = ("", "08P01")

_POOLER_HINTS = {
    "unsupported startup parameter": _Hint(
        "the pooler rejects a parameter of the address",
        "leave that parameter out, or add it to ignore_startup_parameters of the pooler",
    ),
    "no such database": _Hint(
        "the pooler does not know the database", "add it there, or correct the address"
    ),
    "statement pooling mode": _Hint(
        "the pooler allows no transaction, and creating the tables needs one",
        "run: perdure migrate ADDRESS, with the address of the server itself",
    ),
    "SSL required": _Hint("the pooler accepts only TLS", "connect with ?sslmode=require"),
    "no more connections allowed": _Hint(
        "the pooler has too many clients",
        "raise its max_client_conn, or allow each process fewer connections: ?connections=2",
    ),
    "query_wait_timeout": _Hint(
        "the pooler had no free connection to the server",
        "look for long transactions on the server, or raise the pooler's default_pool_size",
    ),
    "server_login_retry": _Hint(
        "the pooler cannot log in to the server",
        "check that the server is running, and that the pooler has the right password",
    ),
}

_PERMANENT_TEXTS = ("unsupported startup parameter", "no such database", "statement pooling mode")


# A failed login has no SQLSTATE, only text. It only selects a hint: a server that reports in
# another language gets none.
_TEXT_HINTS = {
    "too many clients": _STATE_HINTS["53300"],
    "too many connections": _STATE_HINTS["53300"],
    "remaining connection slots": _STATE_HINTS["53300"],
    "failed to resolve host": _Hint(
        "the host name cannot be resolved", "correct it in the address, or check DNS"
    ),
    "does not support SSL": _Hint(
        "the server has no TLS", "enable it there, or use ?sslmode=prefer in a trusted network"
    ),
    "certificate verify failed": _UNTRUSTED_CERTIFICATE,
    "root certificate file": _UNTRUSTED_CERTIFICATE,
    "does not match host name": _UNTRUSTED_CERTIFICATE,
    "authentication failed": _STATE_HINTS["28"],
    "no password supplied": _STATE_HINTS["28"],
    "pg_hba.conf": _Hint(
        "the server does not allow this login",
        "allow this user, host and database in its pg_hba.conf, or connect with ?sslmode=require",
    ),
    "permission denied for database": _Hint(
        "this user may not connect to the database", "grant it connect on the database"
    ),
    "not currently accepting": _Hint(
        "the database accepts no connections", "run: alter database … allow_connections true"
    ),
    'role "': _STATE_HINTS["28"],
    'database "': _STATE_HINTS["3D000"],
    "invalid sslmode value": _Hint(
        "PGSSLMODE has no such value", f"set it to one of {', '.join(ALLOWED_VALUES['sslmode'])}"
    ),
    "is not read-only": _WRONG_ROLE,
    "hot standby mode": _WRONG_ROLE,
    "read-only": _STATE_HINTS["25006"],
    "read-write": _STATE_HINTS["25006"],
}

_STARTING_TEXTS = ("starting up", "shutting down", "in recovery mode", "not yet accepting")

_ROLE_TEXTS = ("read-only", "read-write", "hot standby mode")  # These change on a failover.

_TRANSIENT_TEXTS = (*_STARTING_TEXTS, *_ROLE_TEXTS, "too many", "slots", "resolve host")


_DAMAGE_STATES = ("XX001", "XX002", "23505")

_TOO_LARGE_STATES = ("54000", "22001")

_BLOCKED_STATES = ("40", "55P03", "57014")  # Another client blocks one statement, not all of them.


def translate_error(error: Exception, address: PostgresAddress, stream: str = "") -> PerdureError:
    """Return the perdure error to raise. It never contains a body or a password."""
    translated_error = _translate(error, address, stream)
    if isinstance(translated_error, UnavailableError):
        state = getattr(error, "sqlstate", None) or ""
        translated_error.single_stream = isinstance(error, BlockedError) or state.startswith(
            _BLOCKED_STATES
        )
    return translated_error


def _translate(error: Exception, address: PostgresAddress, stream: str) -> PerdureError:
    original = " ".join(str(error).split())
    text = address.hide(original)
    if isinstance(error, AnswerTimeoutError):
        hint = "check the load and the locks of the server, or of the pooler in front of it"
        return UnavailableError(address.name, text, hint)
    state = getattr(error, "sqlstate", None) or ""
    if state in _DAMAGE_STATES:
        return DamagedError(stream or address.name, 0, f"Postgres: {text}")
    if state in _TOO_LARGE_STATES:
        reason = "a name, a label or an entry is too large for Postgres"
        return UnstorableError(f"{reason}: {text}")
    source, (reason, hint) = _explain(error, state, original)
    if not reason:
        description = f"Postgres: {text}" + (f" ({state})" if state else "")
        return UnavailableError(address.name, description)
    return UnavailableError(address.name, f"{reason} ({source}: {text})", hint)


def _explain(error: Exception, state: str, text: str) -> tuple[str, _Hint]:
    """Return which program refused, why, and what to do; an empty hint if unknown."""
    if state in _POOLER_STATES:
        for words, known_hint in _POOLER_HINTS.items():
            if words in text:
                return "PgBouncer", known_hint
    if hint := _hint_for_state(state, text):
        return "Postgres", hint
    if state or not isinstance(error, psycopg.OperationalError | OSError):
        return "Postgres", _Hint("", "")
    if any(words in text for words in _STARTING_TEXTS):
        return "Postgres", _STATE_HINTS["57"]
    for words, known_hint in _TEXT_HINTS.items():
        if words in text:
            return "Postgres", known_hint
    return "Postgres", _Hint("no connection", "check that the server is running and reachable")


def _hint_for_state(state: str, text: str) -> _Hint | None:
    if state == "42501" and "row-level security" in text:
        return _ROW_SECURITY
    sizes = (size for size in (5, 2) if len(state) >= size)
    return next(
        (_STATE_HINTS[state[:size]] for size in sizes if state[:size] in _STATE_HINTS), None
    )


def raise_translated(
    translated_error: PerdureError, error: Exception, address: PostgresAddress
) -> NoReturn:
    """Raise an error with the driver's error as its cause, which leads to no password.

    A driver's error has the connection, and its frames have the connection's options. Error
    trackers show both, so the cause is a copy with neither, and the original, which is a variable
    of the frames on the way, is emptied. An error whose text shows the password is left out.
    """
    cause = copy(error) if address.hide(str(error)) == str(error) else None
    error.__traceback__ = None
    vars(error).clear()
    try:
        raise translated_error from cause
    finally:
        translated_error.__context__ = None  # The original: the interpreter has just set it.


def log_notify_failed(error: Exception, address: PostgresAddress) -> None:
    """Log that watchers were not notified of a stored append; they find it by polling."""
    fields = {"store": address.name, "session": "", "reason": str(translate_error(error, address))}
    events.emit("notify_failed", fields)


# A prepared statement is missing, or its name is in use: another client shares this session.
_UNPREPARED_STATES = ("26000", "42P05")


def retry_kind(error: Exception) -> RetryKind:
    """Classify an error: "lost" (reconnect), "retry" (send again) or "final" (raise)."""
    if isinstance(error, AnswerTimeoutError):
        return "final"
    state = getattr(error, "sqlstate", None) or ""
    if state in _POOLER_STATES and any(words in str(error) for words in _PERMANENT_TEXTS):
        return "final"
    if state.startswith("40") or state in _UNPREPARED_STATES:
        return "retry"
    if state.startswith(("08", "57P")) or state in ("53300", "57000"):
        return "lost"
    if state or not isinstance(error, psycopg.OperationalError | OSError):
        return "final"
    text = str(error)
    refused = any(words in text for words in _TEXT_HINTS)
    return "final" if refused and not any(words in text for words in _TRANSIENT_TEXTS) else "lost"


def timeout_until(deadline: float | None, address: PostgresAddress) -> float:
    """Return how many seconds to wait for an answer before the caller's deadline, if any."""
    if deadline is None:
        return address.timeout
    return min(address.timeout, max(deadline - time.monotonic(), ANSWER_TIMEOUT_MIN))


class RetryBudget:
    """Retry budget of one call: its deadline, and which errors are worth another attempt."""

    def __init__(
        self, address: PostgresAddress, timeout: float | None = None, stream: str = ""
    ) -> None:
        self._address = address
        self._stream = stream
        self.deadline = time.monotonic() + (address.timeout if timeout is None else timeout)
        self._pause = 0.0

    def after(self, error: Exception) -> float:
        """Return the seconds to wait before the next attempt, or raise the caller's error."""
        kind = retry_kind(error)
        remaining = self.deadline - time.monotonic()
        if kind == "final" or remaining <= self._pause:
            translated_error = translate_error(error, self._address, self._stream)
            if isinstance(translated_error, UnavailableError):
                translated_error.retries_exhausted = remaining <= self._pause
            raise_translated(translated_error, error, self._address)
        pause = self._pause
        self._pause = min(max(pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
        return pause
