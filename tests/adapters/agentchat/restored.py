"""What is restored, and which tests try it: the table of the how-to page is made of this."""

from tests.adapters.restored import EXACT, Row, table

KILLED = "test_a_killed_team_that_is_run_again_says_and_hears_the_same"
UNSAFE = "test_a_killed_team_with_unsafe_tools_goes_on_and_says_what_nobody_knows"

ROWS = [
    Row("An agent's model context", EXACT, EXACT, f"{KILLED}[single]"),
    Row("… with streamed answers", EXACT, EXACT, f"{KILLED}[streaming]"),
    Row("`RoundRobinGroupChat`", EXACT, EXACT, f"{KILLED}[round_robin]"),
    Row("`SelectorGroupChat`", EXACT, EXACT, f"{KILLED}[selector]"),
    Row("`Swarm`", EXACT, EXACT, f"{KILLED}[swarm]"),
    Row("`GraphFlow` with a cycle", EXACT, EXACT, f"{KILLED}[graph]"),
    Row(
        "… that stopped inside of it",
        EXACT,
        EXACT,
        "test_a_graph_that_stopped_in_a_cycle_goes_on_in_another_process",
    ),
    Row(
        "… with answers side by side",
        EXACT,
        "in the same order",
        "test_what_came_side_by_side_comes_in_the_same_order_again",
    ),
    Row("A team in a team", EXACT, EXACT, f"{KILLED}[nested]"),
    Row("`SocietyOfMindAgent`", EXACT, EXACT, f"{KILLED}[society]"),
    Row("`MagenticOneGroupChat`", EXACT, EXACT, f"{KILLED}[magentic]"),
    Row("`AgentTool`", EXACT, EXACT, f"{KILLED}[agent_tool]"),
    Row("Agents of your own", "their `save_state`", "each reply once", f"{KILLED}[custom]"),
    Row(
        "… that are the package's but for how they reply",
        EXACT,
        "each reply once",
        "test_an_agent_that_replies_in_a_way_of_its_own_does_so_once",
    ),
    Row(
        "Messages of your own classes",
        EXACT,
        EXACT,
        "test_messages_of_own_classes_are_said_and_come_back_from_the_record",
    ),
    Row("A task of several messages", EXACT, EXACT, f"{KILLED}[several]"),
    Row("A task that hands over", EXACT, EXACT, f"{KILLED}[handed]"),
    Row("Termination conditions", "as the package resets them", EXACT, f"{KILLED}[round_robin]"),
    Row("Answers of models", "–", "not asked again", f"{KILLED}[round_robin]"),
    Row(
        "… that failed in an agent that is a tool",
        "–",
        "fail again, unasked",
        "test_an_error_inside_of_an_agent_that_is_a_tool_is_the_same_again",
    ),
    Row("Tools, `idempotent` or reconciled", "–", "one outcome", f"{KILLED}[round_robin]"),
    Row("Tools, `unsafe`", "–", "at most one, and the model is told", f"{UNSAFE}[round_robin]"),
    Row("What a person answered", EXACT, "not asked again", "test_a_person_is_not_asked_twice"),
    Row("`ListMemory`", EXACT, "as it was before the run", "test_memory_is_kept_as_it_was"),
    Row(
        "What you clear or change between runs",
        EXACT,
        "what was kept when the block ended, or a run began",
        "test_what_was_cleared_last_stays_cleared",
    ),
    Row(
        "Bounded contexts",
        "stay bounded",
        EXACT,
        "test_a_bounded_context_stays_bounded",
    ),
]

TABLE = table("autogen-agentchat.md", "agentchat", "run", ROWS)
