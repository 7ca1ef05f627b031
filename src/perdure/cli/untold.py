"""Mute log events that a command reports itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from perdure.events import LOGGER


@contextmanager
def untold(event: str) -> Iterator[None]:
    """Suppress log records of one event while the block runs."""
    import logging  # Imported late: most commands do not need it.

    def is_other(record: Any) -> bool:
        return getattr(record, "event", "") != event

    logger = logging.getLogger(LOGGER)
    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)
