"""Events that a command tells in words of its own are kept out of the log meanwhile."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from perdure.events import LOGGER


@contextmanager
def untold(event: str) -> Iterator[None]:
    """Keep one kind of event from being logged."""
    import logging  # Here, because most commands have no use for it.

    def is_other(record: Any) -> bool:
        return getattr(record, "event", "") != event

    logger = logging.getLogger(LOGGER)
    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)
