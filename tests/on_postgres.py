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

from perdure.backends import addresses
from perdure.backends.postgres.backend import PostgresBackend
from perdure.backends.postgres.backend_async import AsyncPostgresBackend

# Conversations and effects are tried on Postgres too.
MODULES = frozenset(
    (
        "tests.adapters.openai.test_effects",
        "tests.adapters.openai.test_wrap",
        "tests.adapters.openai.test_wrap_async",
        "tests.aio.test_lease",
        "tests.aio.test_session",
        "tests.core.effects.test_approvals",
        "tests.core.effects.test_effects",
        "tests.core.effects.test_model_calls",
        "tests.core.test_conflicts",
        "tests.core.test_streaming",
        "tests.core.test_summaries",
        "tests.core.test_turn_context",
        "tests.core.test_verify",
        "tests.core.test_window",
        "tests.formats.test_tool_calls",
        "tests.sync.test_lease",
        "tests.sync.test_session",
        "tests.sync.test_values",
        "tests.sync.test_watch",
    )
)
# They open the store in another process, or are slow and about something else.
NOT = frozenset(
    (
        "test_a_lease_that_can_not_be_given_back_is_told_of",
        "test_a_store_that_hangs_is_told_of_when_the_time_has_passed",
        "test_a_store_that_is_away_lets_the_lease_run_out",
        "test_any_window_is_valid_and_within_its_budget_and_cut_only_if_need_be",
        "test_another_process_is_seen_within_a_moment",
        "test_two_processes_share_them",
        "test_a_window_of_a_long_session_reads_as_much_as_one_of_a_short_one",
        "test_an_async_client_and_a_plain_one_both_serve_in_a_loop",
    )
)


def takes_part(module: str, test: str) -> bool:
    """Whether a test runs on Postgres too."""
    return module in MODULES and test not in NOT


class Postgres:
    """Opens tenants of one schema in the place of other stores."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._numbers = itertools.count()
        self._opened: list[Any] = []
        self._real, self._real_async = addresses.open_backend, addresses.open_async_backend

    def place(self, monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
        """Take the place of what opens stores in a test's module."""
        monkeypatch.setattr(addresses, "open_backend", self._backend)
        monkeypatch.setattr(addresses, "open_async_backend", self._async_backend)
        from tests import support

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
