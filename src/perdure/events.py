"""Emit persistence events: as log records, and as spans if the application uses OpenTelemetry.

An event is a word, a sentence for people and fields for programs; never a body. Nothing is
imported or measured unless something listens: an application that has not imported `logging` has
no handler for it, and one that has not imported OpenTelemetry has no tracer.

| event | meaning | fields besides store, session, duration, outcome |
|---|---|---|
| `open` | a new session was opened | |
| `resume` | an existing session was opened at its end | `count`, `role`, `position` |
| `append` | records were stored, or not | `plan`, `position`, `turn` |
| `conflict` | another writer was first | `position`, `head` |
| `write_in_doubt` | the outcome of a write is unknown | `first`, `last` |
| `settled` | the outcome of a write in doubt is now known | `first`, `last` |
| `snapshot_skipped` | a state snapshot could not be used | `position`, `reason` |
| `history_replaced` | the store has another history than the one read | `position`, `head` |
| `rollback_accepted` | a session continues from what the store has now | `position`, `head` |
| `lease` | a lease was taken, or not | `ttl`, `epoch` |
| `release` | a lease was released, or not | `epoch` |
| `lease_lost` | a lease was lost while in use | `epoch`, `newer`, `holder`, `reason` |
| `verify` | a whole session was checked | `entries`, `position` |
| `summary` | a summary was made, or not | `first`, `last`, `tokens` |
| `summary_failed` | an automatic summary failed, with no caller waiting for it | `reason` |
| `notify_failed` | waiters could not be notified of a record, and find it by polling | `reason` |
| `tools` | the tools offered to a model changed | `turn`, `added`, `removed`, `changed` |
| `version` | another version of a tool began a call | `tool`, `effect`, `recorded`, `now`, `ran` |
| `unstored` | a call succeeded, and its result cannot be stored | `tool`, `effect`, `type` |
| `approval` | a call waits for an approval | `tool`, `approval`, `decide` |
| `downgrade` | a store was opened with an accepted weakness | `accepted`, `costs` |
| `branch`, `copy`, `delete`, `close` | a session was branched, copied, deleted or closed | |

Rules for editing: every write checks whether anything listens, so that must stay cheap. Fields
hold names, positions and ids, never content, arguments or secrets. Ids and names come from users:
what is logged has no control and no invisible characters, so that none can forge a line.
"""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any

from perdure.safe_text import safe

LOGGER = "perdure"

INFO, WARNING = 20, 30  # the values of `logging`, which is not imported just for them


correlation_id: ContextVar[str] = ContextVar("perdure_correlation_id", default="")

"""The id on every event, and on turns that are started without an id of their own."""


# Events that a person should see by default.
_WARNINGS = frozenset(
    {
        *("approval", "downgrade", "history_replaced", "lease_lost", "notify_failed"),
        *("rollback_accepted", "snapshot_skipped", "summary_failed", "unstored", "version"),
        "write_in_doubt",
    }
)


class ActiveEvent:
    """An event in progress. Fields added to `fields` are emitted when it ends."""

    __slots__ = ("event", "fields")

    def __init__(self, event: str, fields: dict[str, Any]) -> None:
        self.event = event
        self.fields = fields


def enabled() -> bool:
    """Return whether a log handler or a tracer would receive an event."""
    return _logger(INFO) is not None or _trace_module() is not None


@contextmanager
def span(event: str, *, store: str, session: str, **fields: Any) -> Iterator[ActiveEvent]:
    """Emit an event when the block ends, with its duration in seconds and its outcome."""
    if not enabled():
        yield ActiveEvent(event, {})
        return
    active = ActiveEvent(event, {"store": store, "session": session, **fields})
    start = time.perf_counter()
    with _otel_span(active):
        try:
            yield active
        except BaseException as error:
            _finish(active, start, outcome=type(error).__name__)
            raise
        _finish(active, start, outcome="ok")


def _finish(active: ActiveEvent, start: float, *, outcome: str) -> None:
    active.fields.setdefault("outcome", outcome)
    active.fields["duration"] = round(time.perf_counter() - start, 6)
    emit(active.event, active.fields)


def emit(event: str, fields: Mapping[str, Any]) -> None:
    """Log an event with its fields."""
    level = WARNING if event in _WARNINGS else INFO
    logger = _logger(level)
    if logger is None:
        return
    named = {"event": event, "correlation_id": correlation_id.get(), **fields}
    # Safe in the fields too: an application's own format may write them into its lines.
    extra = {key: safe(value) if isinstance(value, str) else value for key, value in named.items()}
    shown = [safe(f"{key}={value}") for key, value in extra.items() if _is_shown(key, value)]
    logger.log(level, " ".join([event, *shown]), extra=extra)


def _is_shown(key: str, value: object) -> bool:
    return key != "event" and value not in ("", None)


def _logger(level: int) -> Any:
    """Return the logger if it is enabled at this level, else None."""
    if not _loggers:
        if "logging" not in sys.modules and level < WARNING:
            return None
        try:  # Warnings are logged even if the application never set up logging.
            _loggers.append(import_module("logging").getLogger(LOGGER))
        except OSError:  # Out of file descriptors: the write's own error is more useful.
            return None
    logger = _loggers[0]
    return logger if logger.isEnabledFor(level) else None


_loggers: list[Any] = []  # Empty until `logging` is imported; cached, as every write checks it.


def _trace_module() -> Any:
    """Return OpenTelemetry's `trace` module if the application has set up a tracer, else None.

    The API without a tracer does nothing at 40 µs per event, and other libraries import it.
    """
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    # get_tracer_provider() reads the environment, which takes as long as a digest. After the first
    # call a tracer can only appear by being set, and that is visible in this private variable.
    if trace in _modules_without_tracer and getattr(trace, "_TRACER_PROVIDER", trace) is None:
        return None
    proxy = getattr(trace, "ProxyTracerProvider", None)
    if proxy is None or isinstance(trace.get_tracer_provider(), proxy):
        _modules_without_tracer[:] = [trace]
        return None
    return trace


# OpenTelemetry's module, after a lookup that found no tracer.
_modules_without_tracer: list[Any] = []


@contextmanager
def _otel_span(active: ActiveEvent) -> Iterator[None]:
    trace = _trace_module()
    if trace is None:
        yield
        return
    with trace.get_tracer(LOGGER).start_as_current_span(f"perdure.{active.event}") as current:
        try:
            yield
        finally:
            current.update_name(f"perdure.{active.event}")
            for key, value in active.fields.items():
                if value not in ("", None):
                    current.set_attribute(f"perdure.{key}", value)
