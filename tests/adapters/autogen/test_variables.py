"""What agents know by name, their context variables: in a chat that fails, and between chats."""

import collections
import enum
from collections.abc import Callable
from pathlib import Path
from typing import Any

import autogen
import pytest

import perdure
from perdure.adapters.autogen import persist
from perdure.testing import ModelServer
from tests.adapters.autogen.conftest import Cast
from tests.adapters.autogen.scripts import register
from tests.adapters.autogen.test_persist import CHARGE, REFINE

if not hasattr(autogen, "UpdateSystemMessage"):
    pytest.skip("it has no context variables", allow_module_level=True)


class Color(enum.StrEnum):
    RED = "red"


def knowing(
    cast: Cast, given: dict[str, Any], charging: Callable[[Any], None]
) -> tuple[Any, Any, Any]:
    """Return two agents, one of whom is told what it knows, and what that is; a tool changes it."""
    from autogen.agentchat.group import ContextVariables

    def tell(agent: Any, _: Any) -> None:
        agent.update_system_message(f"You know {agent.context_variables.to_dict()}.")

    user, known = cast.user(max_consecutive_auto_reply=3), ContextVariables(given)
    assistant = autogen.AssistantAgent(
        "assistant",
        llm_config=cast.llm,
        context_variables=known,
        update_agent_state_before_reply=[tell],
    )
    cast._made.append(assistant)

    def charge(id: int) -> str:
        charging(known)
        return f"charged {id}"

    register(charge, assistant, user)
    return user, assistant, known


def learn(known: Any) -> None:
    known["charged"] = 17


@pytest.mark.parametrize("way", ["resume", "again", "abandon"])
def test_what_a_chat_that_failed_has_learnt_is_not_known_when_it_begins_again(
    cast: Cast, server: ModelServer, store: perdure.Store, way: str
) -> None:
    """The agents are the same, and knew nothing before it."""
    user, assistant, known = knowing(cast, {}, learn)
    session = store.session("s")
    server.fault(status=500, at=2)
    with persist(session, user, assistant) as chat:
        with pytest.raises(Exception, match="500"):
            user.initiate_chat(assistant, message=CHARGE, max_turns=2)
        assert known.to_dict() == {"charged": 17}
        if way == "abandon":
            chat.abandon()
            assert known.to_dict() == {}
            return
        if way == "resume":
            assert len(chat.resume().chat_history) == 4
    if way == "again":
        with persist(session, user, assistant):
            user.initiate_chat(assistant, message=CHARGE, max_turns=2)
    assert known.to_dict() == {"charged": 17}
    assert len(server.requests) == 3


def test_objects_that_the_code_holds_stay_those_that_agents_know(
    cast: Cast, store: perdure.Store
) -> None:
    ids: list[int] = []
    user, assistant, known = knowing(cast, {"ids": ids}, lambda _: ids.append(17))
    with persist(store.session("s"), user, assistant):
        for _ in range(2):
            user.initiate_chat(assistant, message=CHARGE, max_turns=2)
    assert known["ids"] is ids
    assert ids == [17, 17]


@pytest.mark.parametrize(
    "value",
    [float("nan"), Color.RED, collections.Counter("a"), "\ud800", {"a": [(1, 2)]}],
    ids=["nan", "enum", "counter", "surrogate", "tuple"],
)
@pytest.mark.parametrize("given", [False, True])
def test_what_json_can_not_say_is_not_kept_and_the_chat_goes_on(
    cast: Cast, store: perdure.Store, caplog: pytest.LogCaptureFixture, value: Any, *, given: bool
) -> None:
    def charge(known: Any) -> None:
        known["value"] = value

    user, assistant, known = knowing(cast, {"value": value} if given else {}, charge)
    assistant.hook_lists["update_agent_state"].clear()  # Who tells it: it may be no text.
    with persist(store.session("s"), user, assistant) as chat:
        user.initiate_chat(assistant, message=CHARGE, max_turns=2)
        assert chat.finished == 1
    assert known["value"] is value
    assert caplog.text.count("the context variables of assistant are not saved") == 1
    with persist(store.session("s"), user, assistant):
        user.initiate_chat(assistant, message=REFINE, max_turns=1)
    assert known["value"] is value


def test_what_the_code_tells_agents_between_chats_is_kept(
    cast: Cast, store: perdure.Store, caplog: pytest.LogCaptureFixture
) -> None:
    user, assistant, known = knowing(cast, {"charged": 0}, learn)
    session = store.session("s")
    with persist(session, user, assistant):
        pass
    assert session.position == 0  # There was nothing to keep.
    with persist(session, user, assistant):
        user.initiate_chat(assistant, message=CHARGE, max_turns=2)
        known["charged"] = 18
    with persist(session, user, assistant):
        assert known.to_dict() == {"charged": 18}
    user, assistant, known = knowing(cast, {"charged": 0}, learn)
    with persist(session, user, assistant):
        assert known.to_dict() == {"charged": 18}
    assert "using the code's" not in caplog.text


def test_what_the_code_tells_agents_does_not_undo_what_another_process_has_done(
    cast: Cast, store: perdure.Store, tmp_path: Path
) -> None:
    user, assistant, known = knowing(cast, {"charged": 0}, learn)
    other, expert, _ = knowing(cast, {"charged": 0}, learn)
    with perdure.open(tmp_path / "agents.db") as elsewhere:
        with persist(store.session("s"), user, assistant):
            user.initiate_chat(assistant, message=REFINE, max_turns=1)
            with persist(elsewhere.session("s"), other, expert):
                other.initiate_chat(expert, message=CHARGE, max_turns=2)
            known["charged"] = 18
        user, assistant, known = knowing(cast, {"charged": 0}, learn)
        with persist(store.session("s"), user, assistant) as chat:
            assert (chat.finished, known["charged"]) == (2, 18)
            assert len(user.chat_messages[assistant]) == 6


def test_agents_that_are_given_to_another_session_know_what_they_do(
    cast: Cast, store: perdure.Store
) -> None:
    user, assistant, known = knowing(cast, {}, learn)
    with persist(store.session("s"), user, assistant):
        user.initiate_chat(assistant, message=CHARGE, max_turns=2)
    for agent in (user, assistant):
        agent.reset()
    with persist(store.session("other"), user, assistant):
        assert known.to_dict() == {"charged": 17}
