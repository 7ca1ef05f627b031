"""The Redis and Valkey backend, sync and async. Importing this package does not import redis-py."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.backends.redis.backend import RedisBackend
    from perdure.backends.redis.backend_async import AsyncRedisBackend

__all__ = ["AsyncRedisBackend", "RedisBackend"]

_MODULES = {"AsyncRedisBackend": "backend_async", "RedisBackend": "backend"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
