"""Set up the log of persistence events in one call, and carry correlation ids.

    import perdure.logging
    perdure.logging.json()                      # JSON lines on standard error

    with perdure.logging.correlation("req-9"):  # events of this task, and turns begun in it
        ...

Everything goes through the standard library's logger `perdure`, with the fields of an event as
attributes of the log record, so that any handler, filter or structlog's `ExtraAdder` sees them.
`perdure.events` lists the events.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import msgspec

from perdure.errors import UsageError
from perdure.events import LOGGER, correlation_id

__all__ = ["CorrelationFilter", "JsonFormatter", "correlation", "correlation_id", "json"]

# What every log record has; the rest was put there by somebody, and is what one wants to see.
_ORDINARY = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, event or message, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = {key: value for key, value in vars(record).items() if key not in _ORDINARY}
        line.update({key: value for key, value in fields.items() if value not in ("", None)})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


class CorrelationFilter(logging.Filter):
    """Gives every log record that passes the correlation id of its task, unless it has one."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not getattr(record, "correlation_id", ""):
            record.correlation_id = correlation_id.get()
        return True


def json(
    target: TextIO | str | Path | None = None, *, level: int | str = logging.INFO
) -> logging.Handler:
    """Write persistence events as JSON lines to standard error, a stream or a file.

    Return the handler, for `removeHandler`. Calling it again replaces what it had set up.
    """
    logger = logging.getLogger(LOGGER)
    handler: logging.Handler
    if isinstance(target, str | Path):
        if not Path(target).parent.is_dir():
            raise UsageError(f"there is no directory {Path(target).parent}: make it first")
        handler = logging.FileHandler(target, encoding="utf-8")
    else:
        handler = logging.StreamHandler(target or sys.stderr)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(CorrelationFilter())
    handler.set_name("perdure.logging.json")
    for former in [*logger.handlers]:
        if former.get_name() == handler.get_name():
            logger.removeHandler(former)
            former.close()
    logger.addHandler(handler)
    logger.setLevel(level)
    return handler


@contextmanager
def correlation(value: str) -> Iterator[None]:
    """Let the events of this block, and of tasks started in it, carry an id."""
    token = correlation_id.set(value)
    try:
        yield
    finally:
        correlation_id.reset(token)
