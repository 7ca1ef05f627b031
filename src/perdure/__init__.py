"""perdure stores the messages, values and calls of AI agents durably, so that they survive crashes.

The path of a write, one module per step:

    session ── writing ── codec ── cipher ── journal ── commit ── backend ── disk or server
      plans     values     payload   body      entry      many sessions,
      over the  as deltas                                 one fsync
      state

Start with `perdure.open("agents.db").session("claim-4711")`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from perdure.errors import (
    ApprovalDeniedError,
    ApprovalError,
    ApprovalPendingError,
    BudgetError,
    ChainError,
    ConflictError,
    DamagedError,
    DivergenceError,
    EffectError,
    FencedError,
    InFlightError,
    InUseError,
    LeaseHeldError,
    NotFoundError,
    PayloadError,
    PerdureError,
    RefusedError,
    ReplayDivergenceError,
    SummaryError,
    TornError,
    UnavailableError,
    UnknownOutcomeError,
    UnsupportedError,
    UsageError,
    VersionError,
)

if TYPE_CHECKING:
    from perdure.backend import Head
    from perdure.conversations.summarising import Summariser
    from perdure.copying.moving import copy, copy_async
    from perdure.effects.tools import Done, Effect, NotDone, current_effect
    from perdure.guarantees import Guarantees
    from perdure.opening import open, open_async  # noqa: A004 - what callers write
    from perdure.records import Record
    from perdure.replays.replaying import Replay, replay
    from perdure.session import Session
    from perdure.session_async import AsyncSession
    from perdure.store import Store
    from perdure.store_async import AsyncStore
    from perdure.transcript import Transcript
    from perdure.turn import Turn
    from perdure.turn_async import AsyncTurn
    from perdure.typed import TypeCodec
    from perdure.values import Values
    from perdure.values_async import AsyncValues
    from perdure.views import Verified, Version

__version__ = "0.1.0"

__all__ = [
    "ApprovalDeniedError",
    "ApprovalError",
    "ApprovalPendingError",
    "AsyncSession",
    "AsyncStore",
    "AsyncTurn",
    "AsyncValues",
    "BudgetError",
    "ChainError",
    "ConflictError",
    "DamagedError",
    "DivergenceError",
    "Done",
    "Effect",
    "EffectError",
    "FencedError",
    "Guarantees",
    "Head",
    "InFlightError",
    "InUseError",
    "LeaseHeldError",
    "NotDone",
    "NotFoundError",
    "PayloadError",
    "PerdureError",
    "Record",
    "RefusedError",
    "Replay",
    "ReplayDivergenceError",
    "Session",
    "Store",
    "Summariser",
    "SummaryError",
    "TornError",
    "Transcript",
    "Turn",
    "TypeCodec",
    "UnavailableError",
    "UnknownOutcomeError",
    "UnsupportedError",
    "UsageError",
    "Values",
    "Verified",
    "Version",
    "VersionError",
    "copy",
    "copy_async",
    "current_effect",
    "open",
    "open_async",
    "replay",
]

# The modules of the public names that need more than `errors`. They are imported on first use, so
# that `import perdure` stays fast and only programs that use asyncio import it.
_WHERE = {
    "AsyncSession": "session_async",
    "AsyncStore": "store_async",
    "AsyncTurn": "turn_async",
    "AsyncValues": "values_async",
    "Done": "effects.tools",
    "Effect": "effects.tools",
    "Guarantees": "guarantees",
    "Head": "backend",
    "NotDone": "effects.tools",
    "Record": "records",
    "Replay": "replays.replaying",
    "Session": "session",
    "Store": "store",
    "Summariser": "conversations.summarising",
    "Transcript": "transcript",
    "Turn": "turn",
    "TypeCodec": "typed",
    "Values": "values",
    "Verified": "views",
    "Version": "views",
    "copy": "copying.moving",
    "copy_async": "copying.moving",
    "current_effect": "effects.tools",
    "open": "opening",
    "open_async": "opening",
    "replay": "replays.replaying",
}
_MODULES = frozenset(
    {
        "adapters",
        "backend",
        "backends",
        "events",
        "logging",
        "records",
        "testing",
        "tokens",
        "transcript",
    }
)


def __getattr__(name: str) -> Any:
    """Import a public name or module on first use."""
    if name in _MODULES:
        return import_module(f"perdure.{name}")
    if name not in _WHERE:
        raise AttributeError(f"module 'perdure' has no attribute {name!r}")
    found = getattr(import_module(f"perdure.{_WHERE[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
