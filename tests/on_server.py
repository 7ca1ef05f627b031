"""Runs tests that were written for a store in memory or in a file on servers too.

What a test opens (`memory:`, a path, a MemoryBackend of its own) becomes a tenant of the server:
the same path is the same store. A module takes part by standing in a list; what looks inside a
backend, or opens the store in another process, can not. Of five tests, two run on Postgres too and
one on Redis; with PERDURE_TEST_ENGINES=all, all run on both.
"""

import hashlib
import itertools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple
from zlib import crc32

import pytest

from perdure.aio import store as async_store
from perdure.backends import addresses
from perdure.backends.postgres.backend import PostgresBackend
from perdure.backends.postgres.backend_async import AsyncPostgresBackend
from perdure.backends.redis.backend import RedisBackend
from perdure.backends.redis.backend_async import AsyncRedisBackend
from perdure.sync import store as sync_store


class Engine(NamedTuple):
    """A kind of server: the fixture with an empty store of it, and its backends."""

    fixture: str
    backend: Callable[[str], Any]
    async_backend: Callable[[str], Any]


ENGINES = {
    "postgres": Engine("postgres_store", PostgresBackend, AsyncPostgresBackend),
    "redis": Engine("redis_store", RedisBackend, AsyncRedisBackend),
}

SAMPLE = ("redis", "postgres", "postgres", None, None)  # One of them for each test.

# Conversations and effects are tried on servers too.
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
# They open the store in another process, look inside a backend, name it, or are slow and about
# something else.
NOT = frozenset(
    (
        "test_a_body_longer_than_any_record_is_named_and_not_read",
        "test_a_call_makes_no_append_more_and_stores_the_answer_once",
        "test_a_lease_that_can_not_be_given_back_is_told_of",
        "test_a_refusal_in_the_background_is_told_of",
        "test_a_renewal_after_the_last_look_voids_the_takeover",
        "test_a_store_that_hangs_is_told_of_when_the_time_has_passed",
        "test_a_store_that_is_away_lets_the_lease_run_out",
        "test_a_store_that_is_gone_stops_the_agent",
        "test_a_store_that_is_put_back_before_it_is_read_back_has_another_history",
        "test_a_store_that_lost_a_session_is_not_written_on",
        "test_a_window_of_a_long_session_reads_as_much_as_one_of_a_short_one",
        "test_an_async_client_and_a_plain_one_both_serve_in_a_loop",
        "test_an_interrupted_caller_leaves_no_lease_behind",
        "test_another_process_is_seen_within_a_moment",
        "test_any_window_is_valid_and_within_its_budget_and_cut_only_if_need_be",
        "test_the_error_says_what_to_run",
        "test_the_last_messages_are_found_with_few_reads_however_much_is_between_them",
        "test_two_processes_share_them",
        "test_what_is_sent_is_what_was_recorded_whatever_happens_to_the_callers_objects",
        "test_whoever_waits_is_told_in_the_log",
        # Broken where the driver is asynchronous: in a turn, such a lease is renewed for ever.
        "test_a_lease_that_nobody_refers_to_is_renewed_no_more",
    )
)


def engines(module: str, test: str) -> list[str]:
    """Return the servers that a test runs on, beside its own store."""
    if module not in MODULES or test in NOT:
        return []
    chosen = SAMPLE[crc32(f"{module}.{test}".encode()) % len(SAMPLE)]
    everywhere = os.environ.get("PERDURE_TEST_ENGINES") == "all"
    return [name for name in ENGINES if everywhere or name == chosen]


class ServerStores:
    """Opens tenants of one server in the place of other stores."""

    def __init__(self, engine: Engine, url: str) -> None:
        self._engine = engine
        self._url = url
        self._numbers = itertools.count()
        self._opened: list[Any] = []
        self._real, self._real_async = addresses.open_backend, addresses.open_async_backend

    def place(self, monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
        """Take the place of what opens stores in a test's module."""
        monkeypatch.setattr(sync_store, "open_backend", self._backend)
        monkeypatch.setattr(async_store, "open_async_backend", self._async_backend)
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
        if text.startswith(("files:", "postgres", "redis")):
            return None
        which = f"m{next(self._numbers)}" if text == "memory:" else text.removeprefix("sqlite:")
        return f"{self._url}_{hashlib.sha256(which.encode()).hexdigest()[:12]}"

    def _kept(self, address: str) -> Any:
        self._opened.append(self._engine.backend(address))
        return self._opened[-1]

    def _backend(self, address: Any) -> Any:
        found = self._address(address)
        return self._real(address) if found is None else self._kept(found)

    def _async_backend(self, address: Any) -> Any:
        found = self._address(address)
        return self._real_async(address) if found is None else self._engine.async_backend(found)

    def _fresh(self) -> Any:
        return self._kept(str(self._address("memory:")))

    def _at(self, path: object, **_: object) -> Any:
        return self._kept(str(self._address(path)))
