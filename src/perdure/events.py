"""Tell of every persistence event: through `logging`, and as spans where OpenTelemetry is used.

An event is a word, a sentence for people and fields for programs; never a body. Nothing is
imported or measured unless somebody listens: an application that has not imported `logging` has
no handler for it, and one that has not imported OpenTelemetry has no tracer.

| event | says that | fields besides store, session, duration, outcome |
|---|---|---|
| `open` | a new session was opened | |
| `resume` | a session was opened where it stopped | `count`, `role`, `position` |
| `append` | records were stored, or not | `plan`, `position`, `turn` |
| `conflict` | another writer was first | `position`, `head` |
| `doubt` | the outcome of a write is unknown | `first`, `last` |
| `settled` | what was in doubt is known now | `first`, `last` |
| `recovery` | a torn batch was found, and counts as absent | `first`, `last` |
| `skipped` | a fold snapshot could not be used | `position`, `reason` |
| `lease` | a lease was taken, or not | `ttl`, `epoch` |
| `release` | a lease was given back, or not | `epoch` |
| `lost` | a lease was lost while it was relied on | `epoch`, `newer`, `who`, `reason` |
| `verify` | a whole session was checked | `entries`, `position` |
| `summary` | a summary was made, or not | `first`, `last`, `tokens` |
| `unsummarised` | nobody was waiting for a summary that was refused | `reason` |
| `unnotified` | who waits for a record was not told of it, and finds it a moment later | `reason` |
| `tools` | a model was offered other tools than before | `turn`, `added`, `removed`, `changed` |
| `version` | another version of a tool had begun a call | `tool`, `recorded`, `now`, `ran` |
| `approval` | a call waits for somebody to approve it | `tool`, `approval`, `decide` |
| `downgrade` | a store was opened with a weakness that was accepted | `accepted`, `costs` |
| `branch`, `delete`, `close` | what they say | |
"""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any

LOGGER = "perdure"
INFO, WARNING = 20, 30  # As in `logging`, which is not imported for them.

correlation_id: ContextVar[str] = ContextVar("perdure_correlation_id", default="")
"""The id that events carry, and turns that are begun without one of their own."""

# What a person should see without having asked for it.
_WARNINGS = frozenset(
    {
        *("approval", "doubt", "downgrade", "lost", "recovery", "skipped", "unnotified"),
        *("unsummarised", "version"),
    }
)


class Observed:
    """An event while it happens. What is added to `fields` is told of at its end."""

    __slots__ = ("event", "fields")

    def __init__(self, event: str, fields: dict[str, Any]) -> None:
        self.event = event
        self.fields = fields


def listening() -> bool:
    """Whether anybody would hear of an event."""
    return _logger(INFO) is not None or _tracing() is not None


@contextmanager
def observed(event: str, *, store: str, session: str, **fields: Any) -> Iterator[Observed]:
    """Tell of an event when the block has ended, with its duration and its outcome."""
    if not listening():
        yield Observed(event, {})
        return
    seen = Observed(event, {"store": store, "session": session, **fields})
    start = time.perf_counter()
    with _span(seen):
        try:
            yield seen
        except BaseException as error:
            _end(seen, start, outcome=type(error).__name__)
            raise
        _end(seen, start, outcome="ok")


def _end(seen: Observed, start: float, *, outcome: str) -> None:
    seen.fields.setdefault("outcome", outcome)
    seen.fields["duration"] = round(time.perf_counter() - start, 6)
    tell(seen.event, seen.fields)


def tell(event: str, fields: Mapping[str, Any]) -> None:
    """Log an event with its fields."""
    level = WARNING if event in _WARNINGS else INFO
    logger = _logger(level)
    if logger is None:
        return
    told = {"event": event, "correlation_id": correlation_id.get(), **fields}
    shown = [f"{key}={value}" for key, value in told.items() if _is_shown(key, value)]
    logger.log(level, " ".join([event, *shown]), extra=told)


def _is_shown(key: str, value: object) -> bool:
    return key != "event" and value not in ("", None)


def _logger(level: int) -> Any:
    """Return the logger if somebody listens at this level."""
    if not _loggers:
        if "logging" not in sys.modules and level < WARNING:
            return None
        try:  # A warning is heard even where nothing was set up.
            _loggers.append(import_module("logging").getLogger(LOGGER))
        except OSError:  # No file can be opened any more; the write's own error says more.
            return None
    logger = _loggers[0]
    return logger if logger.isEnabledFor(level) else None


_loggers: list[Any] = []  # None until somebody has imported `logging`; asked in every write.


def _tracing() -> Any:
    """Return OpenTelemetry's module if the application has set up a tracer.

    Its API alone does nothing, at 40 µs an event, and comes with other libraries unasked.
    """
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    # Asking the proper way reads the environment, which takes as long as a digest. Once asked, a
    # tracer can only come by being set, and that shows here.
    if trace in _asked and getattr(trace, "_TRACER_PROVIDER", trace) is None:
        return None
    proxy = getattr(trace, "ProxyTracerProvider", None)
    if proxy is None or isinstance(trace.get_tracer_provider(), proxy):
        _asked[:] = [trace]
        return None
    return trace


_asked: list[Any] = []  # OpenTelemetry's module, once it was asked for a tracer and had none.


@contextmanager
def _span(seen: Observed) -> Iterator[None]:
    trace = _tracing()
    if trace is None:
        yield
        return
    with trace.get_tracer(LOGGER).start_as_current_span(f"perdure.{seen.event}") as span:
        try:
            yield
        finally:
            span.update_name(f"perdure.{seen.event}")
            for key, value in seen.fields.items():
                if value not in ("", None):
                    span.set_attribute(f"perdure.{key}", value)
