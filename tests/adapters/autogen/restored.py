"""What is restored of classic chats, and which tests try it: the page's table is made of this."""

from tests.adapters.restored import EXACT, Row, table

KILLED = "test_a_killed_chat_goes_on_as_if_nothing_had_happened"
UNSAFE = "test_an_unsafe_tool_is_not_run_twice_and_the_model_is_told"
USAGE = "test_usage_replies_and_results_are_those_of_a_run_that_was_not_interrupted"

ROWS = [
    Row("Histories, with the roles of each side", EXACT, EXACT, "test_each_side_has_its_own_roles"),
    Row(
        "… that your code, or the framework, changed",
        EXACT,
        EXACT,
        "test_a_history_that_was_changed_is_the_same_after_a_restart",
    ),
    Row("A pair with tools", EXACT, EXACT, f"{KILLED}[two_agents-idempotent]"),
    Row("… in async code", EXACT, EXACT, f"{KILLED}[two_agents_async-idempotent]"),
    Row("A group of three", EXACT, EXACT, f"{KILLED}[group_of_three-idempotent]"),
    Row("… whose speakers a model chooses", EXACT, EXACT, f"{KILLED}[chosen_speakers-idempotent]"),
    Row(
        "… whose speakers chance chooses",
        EXACT,
        "the same speakers",
        "test_speakers_that_chance_chooses_are_the_same_again",
    ),
    Row(
        "… its rounds and introductions",
        EXACT,
        EXACT,
        "test_a_group_has_its_rounds_its_speakers_and_its_introductions",
    ),
    Row(
        "… what its manager was told and did not pass on",
        EXACT,
        EXACT,
        "test_what_a_manager_was_told_and_did_not_pass_on",
    ),
    Row("A group in a group", EXACT, EXACT, "test_a_group_in_a_group_is_remembered"),
    Row("Nested chats", EXACT, EXACT, f"{KILLED}[nested-idempotent]"),
    Row(
        "… killed again and again",
        EXACT,
        EXACT,
        "test_a_chat_that_is_killed_again_and_again_comes_to_its_end",
    ),
    Row("Several chats, `initiate_chats`", EXACT, EXACT, f"{KILLED}[several-idempotent]"),
    Row(
        "… side by side, `a_initiate_chats`",
        EXACT,
        EXACT,
        "test_a_queue_of_chats_goes_on_where_it_was",
    ),
    Row("Answers of models", "–", "not asked again", USAGE),
    Row(
        "… that failed, and were passed over",
        "–",
        "fail again, unasked",
        "test_a_summary_that_failed_is_not_another_after_another_failure",
    ),
    Row("Usage and cost", EXACT, EXACT, USAGE),
    Row("Reply counters", EXACT, EXACT, f"{KILLED}[two_agents-idempotent]"),
    Row("Tools, `idempotent`", "–", "one outcome", f"{KILLED}[two_agents-idempotent]"),
    Row("Tools, reconciled", "–", "one outcome", f"{KILLED}[two_agents-reconcile]"),
    Row("Tools, `unsafe`", "–", "at most one, and the model is told", f"{UNSAFE}[two_agents]"),
    Row(
        "Errors of tools",
        EXACT,
        "told in the same words",
        "test_a_tool_is_run_once_and_its_error_is_told_the_same_again",
    ),
    Row("Code that agents run", "–", "not run again", "test_code_that_was_run_is_not_run_again"),
    Row(
        "What a person answered",
        "–",
        "not asked again",
        "test_what_a_human_said_is_not_asked_again",
    ),
    Row("… in all chats", EXACT, "–", "test_what_a_human_said_is_known_after_a_restart"),
    Row(
        "`update_system_message`",
        "kept, unless the code gives other instructions",
        EXACT,
        "test_instructions_that_the_code_changed_are_the_code_s",
    ),
    Row(
        "… by a tool",
        EXACT,
        EXACT,
        "test_instructions_that_a_tool_changed_are_those_after_a_restart",
    ),
    Row(
        "`ContextVariables` of agents",
        "kept, unless the code gives others",
        EXACT,
        "test_what_agents_know_by_name_is_known_after_a_restart",
    ),
    Row("Imported lists", EXACT, "–", "test_what_was_imported_goes_on_from_both_sides"),
]

TABLE = table("autogen-classic-and-ag2.md", "autogen", "chat", ROWS)
