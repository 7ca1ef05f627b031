"""The SQLite backend: one file, write-ahead log, `synchronous=FULL`."""

from perdure.backends.sqlite.backend import SqliteBackend

__all__ = ["SqliteBackend"]
