"""Conversations and effects are tried on Postgres too."""

import pytest

from tests.on_postgres import parametrize

MODULES = frozenset(
    (
        "test_approvals",
        "test_async",
        "test_calls",
        "test_conflicts",
        "test_current",
        "test_effects",
        "test_leases_async",
        "test_leases",
        "test_leases_async",
        "test_models",
        "test_session",
        "test_streaming",
        "test_summaries",
        "test_values",
        "test_verify_writes",
        "test_watch",
        "test_window",
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


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize(metafunc, MODULES, NOT)
