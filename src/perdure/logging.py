"""Set up logging of persistence events in one call, and pass correlation ids.

    import perdure.logging
    perdure.logging.json()                      # JSON lines on standard error

    with perdure.logging.correlation("req-9"):  # events and turns of this task
        ...

Events go through the standard library's logger `perdure`, with the event's fields as attributes
of the log record, so that any handler, filter or structlog's `ExtraAdder` sees them.
`perdure.events` lists the events. Nothing is configured on import.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import msgspec

from perdure.backends.filesystem import open_private
from perdure.errors import UsageError
from perdure.events import LOGGER, correlation_id
from perdure.safe_text import safe, safe_json

__all__ = ["CorrelationFilter", "JsonFormatter", "correlation", "correlation_id", "json"]


# Standard attributes of every log record; all others are fields to show.
_STANDARD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
}


class JsonFormatter(logging.Formatter):
    """Formats one JSON object per line: time, level, logger, message, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = {
            key: value for key, value in vars(record).items() if key not in _STANDARD_ATTRIBUTES
        }
        line.update({key: value for key, value in fields.items() if value not in ("", None)})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return safe_json(msgspec.json.encode(line, enc_hook=str).decode())


class CorrelationFilter(logging.Filter):
    """Sets the correlation id of the current task on each log record that has none."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not getattr(record, "correlation_id", ""):
            record.correlation_id = safe(correlation_id.get())
        return True


class _PrivateFileHandler(logging.FileHandler):
    """Writes to a file that only its owner can read, if it is a new one."""

    def _open(self) -> Any:
        return open(self.baseFilename, self.mode, encoding=self.encoding, opener=open_private)


def json(
    target: TextIO | str | Path | None = None, *, level: int | str = logging.INFO
) -> logging.Handler:
    """Write persistence events as JSON lines to standard error, a stream or a file.

    A new file is readable by its owner only: events carry ids, and texts of the application.
    Return the handler, for `removeHandler`. Calling it again replaces the previous handler.
    """
    logger = logging.getLogger(LOGGER)
    handler: logging.Handler
    if isinstance(target, str | Path):
        if not Path(target).parent.is_dir():
            raise UsageError(f"directory {Path(target).parent} does not exist: create it first")
        try:
            handler = _PrivateFileHandler(target, encoding="utf-8")
        except FileExistsError as error:
            raise UsageError(f"{target} is a link to nothing: pass the path of a file") from error
    else:
        handler = logging.StreamHandler(target or sys.stderr)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(CorrelationFilter())
    handler.set_name("perdure.logging.json")
    for previous in [*logger.handlers]:
        if previous.get_name() == handler.get_name():
            logger.removeHandler(previous)
            previous.close()
    logger.addHandler(handler)
    logger.setLevel(level)
    return handler


@contextmanager
def correlation(value: str) -> Iterator[None]:
    """Set the correlation id for events of this block and of tasks started in it."""
    token = correlation_id.set(value)
    try:
        yield
    finally:
        correlation_id.reset(token)
