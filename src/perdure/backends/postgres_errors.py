"""What psycopg raises becomes what perdure raises; and what may be tried again.

Messages of the server are repeated, because operators look for them; passwords never are.
"""

import time
from typing import Literal, NamedTuple

import psycopg

from perdure import events
from perdure.backend import UnstorableError
from perdure.backends.postgres_address import CHOICES, Address
from perdure.errors import DamagedError, PerdureError, UnavailableError

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0
LEAST = 2.0  # Seconds that a server has to answer, however soon the caller's time has passed.

Kind = Literal["lost", "again", "final"]


class AnswerTimeoutError(psycopg.OperationalError):
    """The server was asked and did not answer in time."""


class BlockedError(AnswerTimeoutError):
    """The same, and the server was there all the while: something held the statement up."""


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
    "42P01": _Hint(
        "a table is missing",
        "run: perdure migrate ADDRESS; if it finds nothing to do, restore the schema from a backup",
    ),
    "40": _Hint("other transactions were always first", "try again later"),
    "53100": _Hint("the server's disk is full", "free space there, then try again"),
    "53200": _Hint("the server is out of memory", "try again later"),
    "53300": _Hint(
        "the server has too many connections",
        "use a pooler, raise max_connections, or allow each process fewer: ?connections=2",
    ),
    "53": _Hint("the server lacks resources", "look at its log, then try again"),
    "55P03": _Hint("a lock is held too long", "try again later"),
    "57014": _Hint("the server cancelled the statement", "raise its statement_timeout"),
    "57": _Hint(
        "the server was stopped or is starting",
        "try again later; if it stays like that, look at the log of the server",
    ),
    "58": _Hint("the server's disk fails", "look at its log"),
}

_NOT_ITS_ROWS = _Hint(
    "row-level security does not let this user write there",
    "open the store with the tenant that is named like the user: ?tenant=USER",
)

_UNTRUSTED = _Hint(
    "the server's certificate was not accepted",
    "check the host's name in the address, and that ?sslrootcert= names who signed the certificate",
)

_OTHER_KIND = _Hint(
    "the server is not of the kind that the address asks for",
    "correct its hosts, or what it says by ?target_session_attrs=",
)

# A pooler answers everything with one SQLSTATE, or with text alone.
_POOLER_STATES = ("", "08P01")
_POOLER = {
    "unsupported startup parameter": _Hint(
        "the pooler refuses a word of the address",
        "leave that word out, or add it to ignore_startup_parameters of the pooler",
    ),
    "no such database": _Hint(
        "the pooler does not know the database", "add it there, or correct the address"
    ),
    "statement pooling mode": _Hint(
        "the pooler allows no transaction, and making the tables takes one",
        "run: perdure migrate ADDRESS, with the address of the server itself",
    ),
    "SSL required": _Hint("the pooler takes only TLS", "connect with ?sslmode=require"),
    "no more connections allowed": _Hint(
        "the pooler has too many clients",
        "raise its max_client_conn, or allow each process fewer connections: ?connections=2",
    ),
    "query_wait_timeout": _Hint(
        "the pooler had no free connection to the server",
        "look for long transactions there, or raise its default_pool_size",
    ),
    "server_login_retry": _Hint(
        "the pooler can not log in to the server",
        "check that the server runs, and that the pooler knows its password",
    ),
}
_HOPELESS = ("unsupported startup parameter", "no such database", "statement pooling mode")

# Of a failed login there is only text. It only chooses a hint: in other languages there is none.
_TEXTS = {
    "too many clients": _STATES["53300"],
    "too many connections": _STATES["53300"],
    "remaining connection slots": _STATES["53300"],
    "failed to resolve host": _Hint(
        "the host is not known", "correct its name in the address, or look at the name service"
    ),
    "does not support SSL": _Hint(
        "the server has no TLS", "set it up there, or allow ?sslmode=prefer in a trusted network"
    ),
    "certificate verify failed": _UNTRUSTED,
    "root certificate file": _UNTRUSTED,
    "does not match host name": _UNTRUSTED,
    "authentication failed": _STATES["28"],
    "no password supplied": _STATES["28"],
    "pg_hba.conf": _Hint(
        "the server takes no such login",
        "allow this user, host and database in its pg_hba.conf, or connect with ?sslmode=require",
    ),
    "permission denied for database": _Hint(
        "this user may not connect to the database", "grant it connect on the database"
    ),
    "not currently accepting": _Hint(
        "the database takes no connections", "let it: alter database … allow_connections true"
    ),
    'role "': _STATES["28"],
    'database "': _STATES["3D000"],
    "invalid sslmode value": _Hint(
        "PGSSLMODE has no such value", f"set it to one of {', '.join(CHOICES['sslmode'])}"
    ),
    "is not read-only": _OTHER_KIND,
    "hot standby mode": _OTHER_KIND,
    "read-only": _STATES["25006"],
    "read-write": _STATES["25006"],
}
_STARTING = ("starting up", "shutting down", "in recovery mode", "not yet accepting")
_KINDS = ("read-only", "read-write", "hot standby mode")  # They change when another one takes over.
_PASSING = (*_STARTING, *_KINDS, "too many", "slots", "resolve host")

_DAMAGE = ("XX001", "XX002", "23505")
_TOO_MUCH = ("54000", "22001")
_BLOCKED = ("40", "55P03", "57014")  # Somebody is in the way of one statement, not of all.


def translated(error: Exception, address: Address, stream: str = "") -> PerdureError:
    """Return the error to raise instead. It never tells of a body or a password."""
    raised = _translated(error, address, stream)
    if isinstance(raised, UnavailableError):
        state = getattr(error, "sqlstate", None) or ""
        raised.of_one = isinstance(error, BlockedError) or state.startswith(_BLOCKED)
    return raised


def _translated(error: Exception, address: Address, stream: str) -> PerdureError:
    told = " ".join(str(error).split())
    text = address.hide(told)
    if isinstance(error, AnswerTimeoutError):
        hint = "look at the load and the locks of the server, or of the pooler before it"
        return UnavailableError(address.name, text, hint)
    state = getattr(error, "sqlstate", None) or ""
    if state in _DAMAGE:
        return DamagedError(stream or address.name, 0, f"Postgres: {text}")
    if state in _TOO_MUCH:
        reason = "a name, a label or an entry is more than Postgres can hold"
        return UnstorableError(f"{reason}: {text}")
    who, (reason, hint) = _explained(error, state, told)
    if not reason:
        what = f"Postgres: {text}" + (f" ({state})" if state else "")
        return UnavailableError(address.name, what)
    return UnavailableError(address.name, f"{reason} ({who}: {text})", hint)


def _explained(error: Exception, state: str, text: str) -> tuple[str, _Hint]:
    """Return who refused, why and what to do; nothing of what is not known here."""
    if state in _POOLER_STATES:
        for words, known in _POOLER.items():
            if words in text:
                return "PgBouncer", known
    if hint := _of_state(state, text):
        return "Postgres", hint
    if state or not isinstance(error, psycopg.OperationalError | OSError):
        return "Postgres", _Hint("", "")
    if any(words in text for words in _STARTING):
        return "Postgres", _STATES["57"]
    for words, known in _TEXTS.items():
        if words in text:
            return "Postgres", known
    return "Postgres", _Hint("no connection", "check that the server runs and can be reached")


def _of_state(state: str, text: str) -> _Hint | None:
    if state == "42501" and "row-level security" in text:
        return _NOT_ITS_ROWS
    sizes = (size for size in (5, 2) if len(state) >= size)
    return next((_STATES[state[:size]] for size in sizes if state[:size] in _STATES), None)


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
    if state in _POOLER_STATES and any(words in str(error) for words in _HOPELESS):
        return "final"
    if state.startswith("40") or state in _UNPREPARED:
        return "again"
    if state.startswith(("08", "57P")) or state in ("53300", "57000"):
        return "lost"
    if state or not isinstance(error, psycopg.OperationalError | OSError):
        return "final"
    text = str(error)
    refused = any(words in text for words in _TEXTS)
    return "final" if refused and not any(words in text for words in _PASSING) else "lost"


def patience_until(deadline: float | None, address: Address) -> float:
    """Return for how long to wait for an answer when the caller waits until a moment, or for ever.

    None is for ever.
    """
    if deadline is None:
        return address.patience
    return min(address.patience, max(deadline - time.monotonic(), LEAST))


class Trial:
    """One call's attempts: how long it may take, and what is worth another one."""

    def __init__(self, address: Address, patience: float | None = None, stream: str = "") -> None:
        self._address = address
        self._stream = stream
        self.deadline = time.monotonic() + (address.patience if patience is None else patience)
        self._pause = 0.0

    def after(self, error: Exception) -> float:
        """Return for how long to wait before the next attempt, or raise what the caller gets."""
        kind = kind_of(error)
        left = self.deadline - time.monotonic()
        if kind == "final" or left <= self._pause:
            raised = translated(error, self._address, self._stream)
            if isinstance(raised, UnavailableError):
                raised.was_waited_for = left <= self._pause
            raise raised from cause(error, self._address)
        pause = self._pause
        self._pause = min(max(pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
        return pause
