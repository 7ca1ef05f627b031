"""What psycopg raises becomes what perdure raises; and what may be tried again.

Messages of the server are repeated, because operators look for them; passwords never are.
"""

import time
from typing import Literal, NamedTuple

import psycopg

from perdure import events
from perdure.backends.postgres_address import CHOICES, Address
from perdure.errors import DamagedError, PerdureError, UnavailableError, UsageError

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0

Kind = Literal["lost", "again", "final"]


class AnswerTimeoutError(psycopg.OperationalError):
    """The server was asked and did not answer in time."""


class _Hint(NamedTuple):
    reason: str
    hint: str


# By SQLSTATE, the longest match first: a class of errors has two characters.
_STATES = {
    "08": _Hint("the connection failed", "check that the server runs and can be reached"),
    "25006": _Hint(
        "the server is read-only, perhaps a standby",
        "connect to the primary, for example with ?target_session_attrs=read-write",
    ),
    "28": _Hint("the server refused the login", "check the user and the password"),
    "3D000": _Hint("the database does not exist", "create it, or correct the address"),
    "3F000": _Hint("the schema is missing", "run: perdure migrate ADDRESS"),
    "42501": _Hint(
        "this user may not do that",
        "grant it usage on the schema, and select, insert, update, delete on its tables",
    ),
    "42P01": _Hint("a table is missing", "run: perdure migrate ADDRESS"),
    "40": _Hint("other transactions were always first", "try again later"),
    "53100": _Hint("the server's disk is full", "free space there, then try again"),
    "53200": _Hint("the server is out of memory", "try again later"),
    "53300": _Hint("the server has too many connections", "use a pooler, or raise max_connections"),
    "53": _Hint("the server lacks resources", "look at its log, then try again"),
    "55P03": _Hint("a lock is held too long", "try again later"),
    "57014": _Hint("the server cancelled the statement", "raise its statement_timeout"),
    "57": _Hint("the server was stopped or is starting", "try again later"),
    "58": _Hint("the server's disk fails", "look at its log"),
}

# Of a failed login there is only text. It only chooses a hint: in other languages there is none.
_TEXTS = {
    "password authentication failed": _STATES["28"],
    "no password supplied": _STATES["28"],
    "pg_hba.conf": _STATES["28"],
    'role "': _STATES["28"],
    'database "': _STATES["3D000"],
    "too many clients": _STATES["53300"],
    "too many connections": _STATES["53300"],
    "remaining connection slots": _STATES["53300"],
    "invalid sslmode value": _Hint(
        "PGSSLMODE has no such value", f"set it to one of {', '.join(CHOICES['sslmode'])}"
    ),
    "read-only": _STATES["25006"],
    "read-write": _STATES["25006"],
}
_STARTING = ("starting up", "shutting down", "in recovery mode", "not yet accepting")
_PASSING = (*_STARTING, "too many", "slots", "read-only", "read-write")

_DAMAGE = ("XX001", "XX002", "23505")
_TOO_MUCH = ("54000", "22001")


def translated(error: Exception, address: Address, stream: str = "") -> PerdureError:
    """Return the error to raise instead. It never tells of a body or a password."""
    text = address.hide(" ".join(str(error).split()))
    if isinstance(error, AnswerTimeoutError):
        return UnavailableError(address.name, text, "look at the server's load and locks")
    state = getattr(error, "sqlstate", None) or ""
    if state in _DAMAGE:
        return DamagedError(stream or address.name, 0, f"Postgres: {text}")
    if state in _TOO_MUCH:
        return UsageError(f"a name, a label or an entry is more than Postgres can hold: {text}")
    for size in (5, 2):
        if state[:size] in _STATES and len(state) >= size:
            reason, hint = _STATES[state[:size]]
            return UnavailableError(address.name, f"{reason} (Postgres: {text})", hint)
    if not state and isinstance(error, psycopg.OperationalError | OSError):
        if any(words in text for words in _STARTING):
            reason, hint = _STATES["57"]
            return UnavailableError(address.name, f"{reason} (Postgres: {text})", hint)
        for words, (reason, hint) in _TEXTS.items():
            if words in text:
                return UnavailableError(address.name, f"{reason} (Postgres: {text})", hint)
        hint = "check that the server runs and can be reached"
        return UnavailableError(address.name, f"no connection (Postgres: {text})", hint)
    return UnavailableError(address.name, f"Postgres: {text}" + (f" ({state})" if state else ""))


def cause(error: Exception, address: Address) -> Exception | None:
    """Return an error as the cause of another, unless that would show a password."""
    return error if address.hide(str(error)) == str(error) else None


def tell_unnotified(error: Exception, address: Address) -> None:
    """Log that nobody could be told of an append, which is stored: who waits looks for it."""
    fields = {"store": address.name, "session": "", "reason": str(translated(error, address))}
    events.tell("unnotified", fields)


# A prepared statement is gone, or its name is taken: somebody else changes this session.
_UNPREPARED = ("26000", "42P05")


def kind_of(error: Exception) -> Kind:
    """Tell whether a statement may be tried again, and how."""
    if isinstance(error, AnswerTimeoutError):
        return "final"
    state = getattr(error, "sqlstate", None) or ""
    if state.startswith("40") or state in _UNPREPARED:
        return "again"
    if state.startswith(("08", "57P")) or state in ("53300", "57000"):
        return "lost"
    if state or not isinstance(error, psycopg.OperationalError | OSError):
        return "final"
    text = str(error)
    refused = any(words in text for words in _TEXTS)
    return "final" if refused and not any(words in text for words in _PASSING) else "lost"


class Trial:
    """One call's attempts: how long it may take, and what is worth another one."""

    def __init__(self, address: Address, patience: float | None = None) -> None:
        self._address = address
        self.deadline = time.monotonic() + (address.patience if patience is None else patience)
        self._pause = 0.0

    def after(self, error: Exception) -> float:
        """Return for how long to wait before the next attempt, or raise what the caller gets."""
        kind = kind_of(error)
        left = self.deadline - time.monotonic()
        if kind == "final" or left <= self._pause:
            raise translated(error, self._address) from cause(error, self._address)
        pause = self._pause
        self._pause = min(max(pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
        return pause
