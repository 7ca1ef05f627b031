"""Runs tests that were written for a plain store on an encrypted one too: what they open has keys.

A sample by the names of the tests takes part in the ordinary run; PERDURE_SEALED=all runs all. What
looks inside a backend, or opens a store in another process, can not take part.
"""

import os
import zlib
from typing import Any

import pytest

SAMPLE = 16  # One test in so many, the same ones in every run.

MODULES = frozenset(
    (
        "tests.aio.test_batch",
        "tests.aio.test_compaction",
        "tests.aio.test_copies",
        "tests.aio.test_fields",
        "tests.aio.test_lease",
        "tests.aio.test_notes",
        "tests.aio.test_recent",
        "tests.aio.test_records",
        "tests.aio.test_retractions",
        "tests.aio.test_session",
        "tests.aio.test_values",
        "tests.aio.test_view",
        "tests.core.effects.test_approvals",
        "tests.core.effects.test_effects",
        "tests.core.effects.test_model_calls",
        "tests.core.replay.test_replay",
        "tests.core.test_conflicts",
        "tests.core.test_streaming",
        "tests.core.test_summaries",
        "tests.core.test_turn_context",
        "tests.core.test_verify",
        "tests.core.test_window",
        "tests.sync.test_batch",
        "tests.sync.test_compaction",
        "tests.sync.test_copies",
        "tests.sync.test_fields",
        "tests.sync.test_lease",
        "tests.sync.test_notes",
        "tests.sync.test_recent",
        "tests.sync.test_records",
        "tests.sync.test_retractions",
        "tests.sync.test_session",
        "tests.sync.test_values",
        "tests.sync.test_view",
        "tests.sync.test_watch",
    )
)
NOT = frozenset(("test_a_store_that_lost_a_session_is_not_written_on",))


def takes_part(module: str, test: str) -> bool:
    """Whether a test runs on an encrypted store."""
    if module not in MODULES or test in NOT:
        return False
    is_sampled = zlib.crc32(f"{module}.{test}".encode()) % SAMPLE == 0
    return is_sampled or os.environ.get("PERDURE_SEALED") == "all"


def place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every store that a test opens a key, unless it has one."""
    from perdure.aio.store import AsyncStore
    from perdure.keys import SecretKey
    from perdure.sync.store import Store

    key = SecretKey(bytes(range(32)))
    for store in (Store, AsyncStore):
        original: Any = store.__init__

        def begin(self: Any, *args: Any, _original: Any = original, **options: Any) -> None:
            options["master"] = options.get("master") or key
            _original(self, *args, **options)

        monkeypatch.setattr(store, "__init__", begin)
