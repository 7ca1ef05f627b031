"""perdure keeps what an AI agent said, knew and did, so that it survives the death of its process.

The road of a write, a module a step:

    session ── writing ── codec ── cipher ── journal ── commit ── backend ── disk or server
      plans     values     payload   body      entry      many sessions,
      over a    as deltas                                 one fsync
      fold

Start with `perdure.open("agents.db").session("claim-4711")`.
"""

from typing import TYPE_CHECKING, Any

from perdure.backend import Guarantees, Head
from perdure.codec import TypeCodec
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
from perdure.opening import open, open_async  # noqa: A004 - perdure.open is what callers write
from perdure.records import Record
from perdure.session import Session
from perdure.store import Store
from perdure.turn import Turn
from perdure.views import Verified, Version

if TYPE_CHECKING:
    from perdure.session_async import AsyncSession
    from perdure.store_async import AsyncStore
    from perdure.turn_async import AsyncTurn

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

_LATER = {
    "AsyncSession": "perdure.session_async",
    "AsyncTurn": "perdure.turn_async",
    "AsyncStore": "perdure.store_async",
}


def __getattr__(name: str) -> Any:
    """Import what needs asyncio only when it is asked for."""
    if name not in _LATER:
        raise AttributeError(f"module 'perdure' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATER[name]), name)
