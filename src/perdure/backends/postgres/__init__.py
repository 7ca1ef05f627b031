"""The Postgres backend, sync and async. Importing this package does not import psycopg."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.backends.postgres.backend import PostgresBackend
    from perdure.backends.postgres.backend_async import AsyncPostgresBackend

__all__ = ["AsyncPostgresBackend", "PostgresBackend"]

_MODULES = {"AsyncPostgresBackend": "backend_async", "PostgresBackend": "backend"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
