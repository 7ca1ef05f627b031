"""perdure keeps what an AI agent said, knew and did, so that it survives the death of its process.

The road of a write, a module a step:

    session ── writing ── codec ── cipher ── journal ── commit ── backend ── disk or server
      plans     values     payload   body      entry      many sessions,
      over a    as deltas                                 one fsync
      fold

Start with `perdure.open("agents.db").session("claim-4711")`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from perdure.errors import (
    ChainError,
    ConflictError,
    DamagedError,
    DivergenceError,
    InUseError,
    NotFoundError,
    PayloadError,
    PerdureError,
    TornError,
    UnavailableError,
    UnsupportedError,
    UsageError,
    VersionError,
)

if TYPE_CHECKING:
    from perdure.backend import Guarantees, Head
    from perdure.codec import TypeCodec
    from perdure.opening import open, open_async  # noqa: A004 - what callers write
    from perdure.records import Record
    from perdure.session import Session
    from perdure.session_async import AsyncSession
    from perdure.store import Store
    from perdure.store_async import AsyncStore
    from perdure.turn import Turn
    from perdure.turn_async import AsyncTurn
    from perdure.views import Verified, Version

__version__ = "0.1.0"

__all__ = [
    "AsyncSession",
    "AsyncStore",
    "AsyncTurn",
    "ChainError",
    "ConflictError",
    "DamagedError",
    "DivergenceError",
    "Guarantees",
    "Head",
    "InUseError",
    "NotFoundError",
    "PayloadError",
    "PerdureError",
    "Record",
    "Session",
    "Store",
    "TornError",
    "Turn",
    "TypeCodec",
    "UnavailableError",
    "UnsupportedError",
    "UsageError",
    "Verified",
    "Version",
    "VersionError",
    "open",
    "open_async",
]

# Where the names are that need more than errors. They are imported when they are first asked for:
# a program that only may keep state starts as fast as before, and asyncio comes to who uses it.
_WHERE = {
    "AsyncSession": "session_async",
    "AsyncStore": "store_async",
    "AsyncTurn": "turn_async",
    "Guarantees": "backend",
    "Head": "backend",
    "Record": "records",
    "Session": "session",
    "Store": "store",
    "Turn": "turn",
    "TypeCodec": "codec",
    "Verified": "views",
    "Version": "views",
    "open": "opening",
    "open_async": "opening",
}
_MODULES = frozenset({"backend", "backends", "events", "logging", "records", "testing"})


def __getattr__(name: str) -> Any:
    """Import what is asked for."""
    if name in _MODULES:
        return import_module(f"perdure.{name}")
    if name not in _WHERE:
        raise AttributeError(f"module 'perdure' has no attribute {name!r}")
    found = getattr(import_module(f"perdure.{_WHERE[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
