"""perdure stores the messages, values and calls of AI agents durably, so that they survive crashes.

The path of a write, one module per step:

    session ── plans ── codec ── cipher ── chain ── group_commit ── backend ── disk or server
               over the payload   body      entry    many sessions,
               state                                 one fsync

Start with `perdure.open("agents.db").session("claim-4711")`.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any, overload

from perdure.errors import (
    AgentLimitError,
    ApprovalDeniedError,
    ApprovalError,
    ApprovalPendingError,
    ChainError,
    CompactedError,
    ConflictError,
    ContextWindowError,
    DamagedError,
    DivergenceError,
    EffectError,
    FencedError,
    HistoryReplacedError,
    InFlightError,
    InUseError,
    LeaseHeldError,
    NotFoundError,
    PayloadError,
    PerdureError,
    ReplayBlockedError,
    ReplayDivergenceError,
    SealedError,
    SummaryError,
    UnavailableError,
    UnknownOutcomeError,
    UnstoredResultError,
    UnsupportedError,
    UsageError,
    VersionError,
)

if TYPE_CHECKING:
    from perdure import keys as keys
    from perdure import models as models
    from perdure import types as types
    from perdure.aio.agent import AsyncAgent
    from perdure.aio.copy import copy_async
    from perdure.aio.large_body import AsyncLargeBody
    from perdure.aio.session import AsyncSession
    from perdure.aio.store import AsyncStore, open_async
    from perdure.aio.turn import AsyncTurn
    from perdure.aio.values import AsyncValues
    from perdure.backends.guarantees import Guarantees
    from perdure.core.effects.calls import DidNotHappen, Effect, Happened, current_effect
    from perdure.core.lifecycle import SessionInfo
    from perdure.core.replay.result import Replay
    from perdure.core.summaries import Summarizer
    from perdure.core.validation import safe_id
    from perdure.core.values import Version
    from perdure.core.verify import VerifyResult
    from perdure.formats.transcript import Transcript
    from perdure.journal.records import Record
    from perdure.journal.user_types import TypeCodec
    from perdure.sync.agent import Agent
    from perdure.sync.copy import copy
    from perdure.sync.large_body import LargeBody
    from perdure.sync.session import Session
    from perdure.sync.store import (
        Store,
        open,  # noqa: A004 - what callers write
    )
    from perdure.sync.turn import Turn
    from perdure.sync.values import Values

__version__ = "0.1.0"


__all__ = [
    "Agent",
    "AgentLimitError",
    "ApprovalDeniedError",
    "ApprovalError",
    "ApprovalPendingError",
    "AsyncAgent",
    "AsyncLargeBody",
    "AsyncSession",
    "AsyncStore",
    "AsyncTurn",
    "AsyncValues",
    "ChainError",
    "CompactedError",
    "ConflictError",
    "ContextWindowError",
    "DamagedError",
    "DidNotHappen",
    "DivergenceError",
    "Effect",
    "EffectError",
    "FencedError",
    "Guarantees",
    "Happened",
    "HistoryReplacedError",
    "InFlightError",
    "InUseError",
    "LargeBody",
    "LeaseHeldError",
    "NotFoundError",
    "PayloadError",
    "PerdureError",
    "Record",
    "Replay",
    "ReplayBlockedError",
    "ReplayDivergenceError",
    "SealedError",
    "Session",
    "SessionInfo",
    "Store",
    "Summarizer",
    "SummaryError",
    "Transcript",
    "Turn",
    "TypeCodec",
    "UnavailableError",
    "UnknownOutcomeError",
    "UnstoredResultError",
    "UnsupportedError",
    "UsageError",
    "Values",
    "VerifyResult",
    "Version",
    "VersionError",
    "copy",
    "copy_async",
    "current_effect",
    "open",
    "open_async",
    "replay",
    "safe_id",
]


# The modules of the public names that need more than `errors`. They are imported on first use, so
# that `import perdure` stays fast and only programs that use asyncio import it.
_PUBLIC_MODULES = {
    "Agent": "sync.agent",
    "AsyncAgent": "aio.agent",
    "AsyncLargeBody": "aio.large_body",
    "AsyncSession": "aio.session",
    "AsyncStore": "aio.store",
    "AsyncTurn": "aio.turn",
    "AsyncValues": "aio.values",
    "Happened": "core.effects.calls",
    "Effect": "core.effects.calls",
    "Guarantees": "backends.guarantees",
    "DidNotHappen": "core.effects.calls",
    "LargeBody": "sync.large_body",
    "Record": "journal.records",
    "Replay": "core.replay.result",
    "Session": "sync.session",
    "SessionInfo": "core.lifecycle",
    "Store": "sync.store",
    "Summarizer": "core.summaries",
    "Transcript": "formats.transcript",
    "Turn": "sync.turn",
    "TypeCodec": "journal.user_types",
    "Values": "sync.values",
    "VerifyResult": "core.verify",
    "Version": "core.values",
    "copy": "sync.copy",
    "copy_async": "aio.copy",
    "current_effect": "core.effects.calls",
    "open": "sync.store",
    "open_async": "aio.store",
    "safe_id": "core.validation",
}

_SUBMODULES = frozenset(
    {
        "adapters",
        "backends",
        "events",
        "formats",
        "journal",
        "keys",
        "logging",
        "models",
        "testing",
        "types",
    }
)


@overload
def replay(
    session: "Session",
    agent: "Callable[[Session], Any]",
    *,
    start: int | str | None = None,
    end: int | str | None = None,
    ignore: Collection[str] = (),
    errors: Iterable[type[BaseException]] = (),
) -> "Replay": ...


@overload
def replay(
    session: "AsyncSession",
    agent: "Callable[[AsyncSession], Awaitable[Any]]",
    *,
    start: int | str | None = None,
    end: int | str | None = None,
    ignore: Collection[str] = (),
    errors: Iterable[type[BaseException]] = (),
) -> "Awaitable[Replay]": ...


def replay(
    session: Any,
    agent: Callable[[Any], Any],
    *,
    start: int | str | None = None,
    end: int | str | None = None,
    ignore: Collection[str] = (),
    errors: Iterable[type[BaseException]] = (),
) -> "Replay | Awaitable[Replay]":
    """Run an agent's code again on the record of a session, and compare. Nothing is written.

    `agent` is a function of a session: the same code that was recorded. Its models and tools are
    served from the record. Other sessions and stores, network access and starting programs are
    refused: ReplayBlockedError. For an AsyncSession, pass an async function and await the result.

    `start` and `end` are positions, or ids of turns; the default is the whole session. Records of
    the kinds in `ignore` are not compared. Errors that tools raised are raised again as builtin
    types, or as the application's own types that are passed in `errors`.
    """
    from perdure.core.replay.result import ReplayRequest, _error_types
    from perdure.journal.kinds import KINDS
    from perdure.sync.replay import replay as replay_sync
    from perdure.sync.session import Session

    if not callable(agent):
        kind = type(agent).__qualname__
        raise UsageError(f"an agent must be a function of a session, not a {kind}")
    unknown = {*ignore} - {*KINDS}
    if isinstance(ignore, str) or unknown:
        raise UsageError(f"no kind of record: {', '.join(sorted(unknown)) or ignore}")
    request = ReplayRequest(start, end, frozenset(ignore), _error_types(errors))
    if isinstance(session, Session):
        return replay_sync(session, agent, request)
    if type(session).__name__ != "AsyncSession":
        raise UsageError(f"only a session can be replayed, not a {type(session).__qualname__}")
    from perdure.aio.replay import replay_async  # Imported here: it loads asyncio.

    return replay_async(session, agent, request)


def __getattr__(name: str) -> Any:
    """Import a public name or module on first use."""
    if name in _SUBMODULES:
        return import_module(f"perdure.{name}")
    if name not in _PUBLIC_MODULES:
        raise AttributeError(f"module 'perdure' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"perdure.{_PUBLIC_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
