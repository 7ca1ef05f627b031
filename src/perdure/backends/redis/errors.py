"""Translate errors of redis-py and the server into perdure errors, and decide which to retry.

Server messages are repeated, because operators search for them; passwords never are. Unknown errors
become UnavailableError with the server's text.
"""

import time
from copy import copy
from typing import NamedTuple, NoReturn

from redis import exceptions as driver

from perdure.backends.redis.address import RedisAddress
from perdure.errors import (
    DamagedError,
    PerdureError,
    UnavailableError,
    UnstorableError,
    UsageError,
)

FIRST_PAUSE = 0.01  # seconds before the second retry; the first one is immediate

LONGEST_PAUSE = 0.5  # seconds; a replica that was promoted is found about this fast

ANSWER_TIMEOUT_MIN = 2.0  # seconds; minimum time to answer, however close the caller's deadline is


class NoAnswerError(driver.TimeoutError):
    """The server did not answer in time."""


class UnconfirmedError(driver.RedisError):
    """Fewer replicas than asked for have confirmed a write in time."""


class _Hint(NamedTuple):
    reason: str
    hint: str


# By the code that an error of the server begins with.
_HINTS = {
    "OOM": _Hint(
        "the server's memory is full",
        "raise its maxmemory, or move sessions to another store; nothing was stored",
    ),
    "MISCONF": _Hint(
        "the server cannot write to its disk, and so refuses writes",
        "free space there, and check its log",
    ),
    "WRONGPASS": _Hint("the server refused the login", "check the user and the password"),
    "NOAUTH": _Hint(
        "the server wants a login", "write it in the address: redis://user:password@host"
    ),
    "NOPERM": _Hint(
        "this user lacks a permission",
        "grant it +@read +@write +@scripting +publish +info on the keys and channels of the prefix",
    ),
    "READONLY": _Hint(
        "the server is a replica, which cannot write", "connect to the primary, or wait for it"
    ),
    "NOREPLICAS": _Hint(
        "the server has too few replicas to write (min-replicas-to-write)",
        "check that its replicas are running and connected",
    ),
    "LOADING": _Hint("the server is loading its data", "try again later"),
    "BUSY": _Hint("the server is busy with a long script", "look for its client, then try again"),
    "CLUSTERDOWN": _Hint(
        "the cluster has no node for some of its slots",
        "wait for the failover; if it persists, check its nodes with CLUSTER NODES",
    ),
    "TRYAGAIN": _Hint(
        "the slot of this session is being moved to another node", "try again when that is done"
    ),
    "MASTERDOWN": _Hint("the server's primary is down", "wait for the failover"),
    "CROSSSLOT": _Hint("keys of one session are in different slots", "report this as a bug"),
}

_TRANSIENT_CODES = frozenset(
    ("READONLY", "NOREPLICAS", "LOADING", "BUSY", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN")
)


def error_code(error: Exception) -> str:
    """Return the code that the server's message began with, such as `OOM`; "" if it had none."""
    code = getattr(error, "status_code", None) or str(error).partition(" ")[0]
    return code if code.isupper() and code.isalpha() else ""


def is_forbidden(error: BaseException | None) -> bool:
    """Return whether the server says that this user lacks a permission, for a script too."""
    return isinstance(error, driver.NoPermissionError) or "ACL failure in script" in str(error)


def is_transient(error: Exception) -> bool:
    """Return whether the same call may succeed soon, on this server or another."""
    if isinstance(error, NoAnswerError | driver.AuthenticationError):
        return False
    if error_code(error) in _TRANSIENT_CODES:
        return True
    if isinstance(error, UnconfirmedError | driver.MovedError):
        return True
    return isinstance(error, driver.ConnectionError | driver.TimeoutError | OSError)


def translate_error(error: Exception, address: RedisAddress, stream: str = "") -> PerdureError:
    """Return the perdure error to raise. It never contains a body or a password."""
    text = address.hide(" ".join(str(error).split()))
    code = "NOPERM" if is_forbidden(error) else error_code(error)
    if "DB index is out of range" in text:
        number = address.database
        return UsageError(
            f"the server has no database {number} (a cluster has only the database 0)"
        )
    if code == "WRONGTYPE" or "XADD is equal or smaller" in text:
        return DamagedError(stream or address.name, 0, f"Redis: {text}")
    if "invalid bulk length" in text or "exceeds maximum allowed size" in text:
        return UnstorableError(f"an entry is too large for Redis (proto-max-bulk-len): {text}")
    if isinstance(error, UnconfirmedError):
        hint = "check its replicas, or ask for fewer: ?replicas=… in the address"
        return UnavailableError(address.name, text, hint)
    if isinstance(error, NoAnswerError):
        return UnavailableError(address.name, text, "check the load of the server")
    if code in _HINTS:
        reason, hint = _HINTS[code]
        return UnavailableError(address.name, f"{reason} (Redis: {text})", hint)
    if isinstance(error, driver.AuthenticationError):
        reason, hint = _HINTS["WRONGPASS"]
        return UnavailableError(address.name, f"{reason} (Redis: {text})", hint)
    if isinstance(error, driver.ConnectionError | driver.TimeoutError | OSError):
        hint = "check that the server is running and reachable"
        if "certificate" in text:
            hint = "check the certificate, or pass ssl_ca_certs= in the address"
        return UnavailableError(address.name, f"no connection (Redis: {text})", hint)
    return UnavailableError(address.name, f"Redis: {text}" + (f" ({code})" if code else ""))


def raise_translated(
    translated_error: PerdureError, error: Exception, address: RedisAddress
) -> NoReturn:
    """Raise an error with a copy of the driver's as its cause.

    The frames of the original hold the connection, which has the password; error trackers show
    frames. An error whose text shows the password is left out.
    """
    cause = copy(error) if address.hide(str(error)) == str(error) else None
    error.__traceback__ = None
    if cause is not None:
        cause.__traceback__ = cause.__context__ = cause.__cause__ = None
    try:
        raise translated_error from cause
    finally:
        translated_error.__context__ = None  # The original: the interpreter has just set it.


def timeout_until(deadline: float | None, address: RedisAddress) -> float:
    """Return how many seconds to wait for an answer before the caller's deadline, if any."""
    if deadline is None:
        return address.timeout
    return min(address.timeout, max(deadline - time.monotonic(), ANSWER_TIMEOUT_MIN))


class CallBudget:
    """Retry budget of one call: its deadline, and which errors are worth another attempt."""

    def __init__(
        self, address: RedisAddress, timeout: float | None = None, stream: str = ""
    ) -> None:
        self._address = address
        self._stream = stream
        self.deadline = time.monotonic() + (address.timeout if timeout is None else timeout)
        self._pause = 0.0
        self._cause: Exception | None = None

    def after(self, error: Exception) -> float:
        """Return the seconds to wait before the next attempt, or raise the caller's error."""
        if isinstance(error, NoAnswerError):
            error = self._cause or error  # The better reason for the time that has passed.
        else:
            self._cause = error
        remaining = self.deadline - time.monotonic()
        if not is_transient(error) or remaining <= self._pause + 0.001:
            translated_error = translate_error(error, self._address, self._stream)
            if isinstance(translated_error, UnavailableError):
                translated_error.retries_exhausted = remaining <= self._pause
            raise_translated(translated_error, error, self._address)
        pause = self._pause
        self._pause = min(max(pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
        return pause
