"""Runs tests that were written for a store in memory or in a file on Postgres too.

What a test opens (`memory:`, a path, a MemoryBackend of its own) becomes a tenant of the test's
schema: the same path is the same store. A module takes part by standing in a list; what looks
inside a backend, or opens the store in another process, can not.
"""

import hashlib
import itertools
from types import ModuleType
from typing import Any

import pytest

from perdure import opening
from perdure.backends.postgres import PostgresBackend
from perdure.backends.postgres_async import AsyncPostgresBackend

BACKENDS = ("own", "postgres")


def parametrize(metafunc: pytest.Metafunc, modules: frozenset[str], not_: frozenset[str]) -> None:
    """Have a test run on its own store and on Postgres, if it can."""
    name = metafunc.module.__name__.rpartition(".")[2]
    if name not in modules or metafunc.function.__name__ in not_:
        return
    metafunc.fixturenames.insert(0, "on_backend")  # Before fixtures that open a store.
    metafunc.parametrize("on_backend", BACKENDS, indirect=True)


class Postgres:
    """Opens tenants of one schema in the place of other stores."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._numbers = itertools.count()
        self._opened: list[Any] = []
        self._real, self._real_async = opening.backend_of, opening.async_backend_of

    def place(self, monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
        """Take the place of what opens stores in a test's module."""
        monkeypatch.setattr(opening, "backend_of", self._backend)
        monkeypatch.setattr(opening, "async_backend_of", self._async_backend)
        from tests.core import support

        for one in (module, support):
            for name, new in (("MemoryBackend", self._fresh), ("SqliteBackend", self._at)):
                if hasattr(one, name):
                    monkeypatch.setattr(one, name, new)

    def close(self) -> None:
        for backend in self._opened:
            backend.close()

    def _address(self, address: object) -> str | None:
        text = str(address)
        if text.startswith(("files:", "postgres")):
            return None
        which = f"m{next(self._numbers)}" if text == "memory:" else text.removeprefix("sqlite:")
        return f"{self._url}_{hashlib.sha256(which.encode()).hexdigest()[:12]}"

    def _kept(self, backend: PostgresBackend) -> PostgresBackend:
        self._opened.append(backend)
        return backend

    def _backend(self, address: Any) -> Any:
        found = self._address(address)
        return self._real(address) if found is None else self._kept(PostgresBackend(found))

    def _async_backend(self, address: Any) -> Any:
        found = self._address(address)
        return self._real_async(address) if found is None else AsyncPostgresBackend(found)

    def _fresh(self) -> PostgresBackend:
        return self._kept(PostgresBackend(str(self._address("memory:"))))

    def _at(self, path: object, **_: object) -> PostgresBackend:
        return self._kept(PostgresBackend(str(self._address(path))))
