"""Stores of opaque entries. The backend protocol is re-exported here; no driver is imported."""

from perdure.backends.protocol import (
    CONFLICT,
    STORED,
    Append,
    AsyncBackend,
    Backend,
    Entry,
    Head,
    Outcome,
    StreamFilter,
)

__all__ = [
    "CONFLICT",
    "STORED",
    "Append",
    "AsyncBackend",
    "Backend",
    "Entry",
    "Head",
    "Outcome",
    "StreamFilter",
]
