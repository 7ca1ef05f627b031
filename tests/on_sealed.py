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
# They order by values, use another process, count calls of a clock, edit headers, or act at the
# first append of a store, which is that of a key.
NOT = frozenset(
    (
        "test_a_copied_store_finds_them_too",
        "test_a_header_with_values_that_no_writer_makes_is_found_by_verify",
        "test_a_listed_session_says_when_it_was_changed",
        "test_a_name_is_normalized_as_python_does_with_a_keyword",
        "test_a_question_without_an_answer_says_what_to_ask_instead",
        "test_a_race_at_the_commit_stores_nothing",
        "test_a_session_that_another_process_continues_before_it_is_read_back_is_not_damaged",
        "test_a_session_that_is_deleted_before_it_is_read_back_is_not_damaged",
        "test_a_store_that_does_not_keep_what_it_stored_is_found_out_at_once",
        "test_a_store_that_is_put_back_before_it_is_read_back_has_another_history",
        "test_a_store_that_lost_a_session_is_not_written_on",
        "test_a_store_without_an_order_of_values_still_finds_them",
        "test_a_wall_clock_that_tells_no_time_does_not_end_a_lease",
        "test_another_process_is_seen_within_a_moment",
        "test_closing_a_store_waits_for_what_was_asked_before",
        "test_sessions_are_sorted_by_a_field",
        "test_two_processes_share_them",
    )
)


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
