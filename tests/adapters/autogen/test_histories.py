"""What agents remember, where that does not follow from what was said: it is kept as it is."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import autogen
import pytest

import perdure
from perdure.adapters.autogen import persist
from perdure.testing import ModelServer
from tests.adapters.autogen.conftest import Cast
from tests.adapters.autogen.killing import scene
from tests.adapters.autogen.scripts import SCRIPTS, SESSION
from tests.adapters.autogen.test_persist import CHECKLIST, REFINE, said

CARD = "My card is 1234."


def remembered(*agents: Any) -> dict[str, Any]:
    """Return all that agents remember of each other, and what is in the groups of managers."""
    known = {
        agent.name: {peer.name: [*said] for peer, said in agent.chat_messages.items() if said}
        for agent in agents
    }
    groups = {one.name: [*one.groupchat.messages] for one in agents if hasattr(one, "groupchat")}
    return {"pairs": {name: one for name, one in known.items() if one}, "groups": groups}


def kept(session: perdure.Session) -> Any:
    """Return the histories that are kept besides what was said."""
    return session.get("autogen")["state"]["histories"]["changed"]


def pop(messages: list[Any]) -> None:
    messages.pop()


def hide(messages: list[Any]) -> None:
    messages[0]["content"] = "My card is ****."


def add(messages: list[Any]) -> None:
    messages.append({"role": "user", "content": "Be brief.", "name": "user_proxy"})


def turn(messages: list[Any]) -> None:
    messages.reverse()


def cut(messages: list[Any]) -> None:
    del messages[0]


def clear(messages: list[Any]) -> None:
    messages.clear()


CHANGES = [pop, hide, add, turn, cut, clear]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("fails", [False, True])
def test_a_history_that_was_changed_is_the_same_after_a_restart(
    cast: Cast,
    server: ModelServer,
    store: perdure.Store,
    change: Callable[[list[Any]], None],
    *,
    fails: bool,
) -> None:
    user, assistant = cast.pair()
    session = store.session("s")
    with persist(session, user, assistant):
        user.initiate_chat(assistant, message=CARD)
        change(user.chat_messages[assistant])
        change(assistant.chat_messages[user])
        before = remembered(user, assistant)
        if fails:
            server.fault(status=500, at=len(server.requests) + 1)
            with pytest.raises(Exception, match="500"):
                user.initiate_chat(assistant, message=REFINE)
        else:
            user.initiate_chat(assistant, message=REFINE)
            before = remembered(user, assistant)
    asked = server.requests[-1].body["messages"]
    user, assistant = cast.pair()
    with persist(session, user, assistant) as chat:
        assert remembered(user, assistant) == before
        if fails:
            chat.resume()
            assert server.requests[-1].body["messages"] == asked
        user.initiate_chat(assistant, message="And now?")
        before = remembered(user, assistant)
    assert server.requests[-1].body["messages"][1 : len(asked)] == asked[1:]
    again = cast.pair()
    with persist(session, *again):
        assert remembered(*again) == before


def test_a_history_that_was_cleared_is_not_kept_a_second_time(
    cast: Cast, store: perdure.Store
) -> None:
    user, assistant = cast.pair()
    session = store.session("s")
    with persist(session, user, assistant):
        user.initiate_chat(assistant, message=CARD)
        assistant.clear_history(user)
        for _ in range(3):
            user.initiate_chat(assistant, message=REFINE)
    assert kept(session)["pairs"] == {"assistant": {"user_proxy": 0}}
    assert len(said(assistant, user)) == 6


def test_what_can_not_be_kept_of_a_history_is_refused(
    cast: Cast, server: ModelServer, store: perdure.Store
) -> None:
    user, assistant = cast.pair()
    with persist(store.session("s"), user, assistant):
        user.initiate_chat(assistant, message=CARD)
        user.chat_messages[assistant][1]["about"] = object()
        match = r"\$\[1\]: what 'user_proxy' remembers of 'assistant' was changed to something"
        with pytest.raises(perdure.UsageError, match=match):
            user.initiate_chat(assistant, message=REFINE)
        assert len(server.requests) == 1
        del user.chat_messages[assistant][1]["about"]
        assert len(user.initiate_chat(assistant, message=REFINE).chat_history) == 4


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "two_agents_async"])
def test_what_follows_from_what_was_said_is_not_kept_twice(
    server: ModelServer, tmp_path: Path, name: str
) -> None:
    SCRIPTS[name](scene(tmp_path, url=server.url))
    with perdure.open(tmp_path / "s.db") as store:
        found = kept(store.session(SESSION))
    if name != "nested":  # Where the framework itself clears histories.
        assert found is None
    else:
        assert found["pairs"]["reviewer"] == {"user_proxy": 4}
        assert {type(one) for known in found["pairs"].values() for one in known.values()} == {int}


def test_what_a_manager_was_told_and_did_not_pass_on(
    cast: Cast, server: ModelServer, store: perdure.Store
) -> None:
    session = store.session("s")

    def group() -> tuple[Any, list[Any]]:
        manager = cast.group("planner", "writer", send_introductions=True)
        return manager, [manager, *manager.groupchat.agents]

    manager, agents = group()
    clerk = agents[1]
    with persist(session, manager):
        clerk.initiate_chat(manager, message=CHECKLIST)
        clerk.send("A note.", manager, request_reply=False)
        between = remembered(*agents)
        clerk.initiate_chat(manager, message=REFINE)
        before = remembered(*agents)
    assert "A note." not in str(before["groups"])
    manager, agents = group()
    with persist(session, manager):
        assert remembered(*agents) == before

    manager, agents = group()
    whole = server.requests[-1].body["messages"]
    with persist(store.session("failed"), manager):
        agents[1].initiate_chat(manager, message=CHECKLIST)
        agents[1].send("A note.", manager, request_reply=False)
        server.fault(status=500, at=len(server.requests) + 2)
        with pytest.raises(Exception, match="500"):
            agents[1].initiate_chat(manager, message=REFINE)
    manager, agents = group()
    with persist(store.session("failed"), manager) as chat:
        assert remembered(*agents) == between
        chat.resume()
        assert remembered(*agents) == before
    assert server.requests[-1].body["messages"] == whole


def test_a_call_that_a_manager_did_not_pass_on_is_closed_where_it_was_heard(
    cast: Cast, server: ModelServer, store: perdure.Store
) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "charge", "arguments": "{}"}}

    def chat(*, first: bool) -> tuple[Any, Any]:
        manager = cast.group("planner", "writer")
        clerk, planner, _ = manager.groupchat.agents
        with persist(store.session("s"), manager):
            if first:
                clerk.initiate_chat(manager, message=CHECKLIST)
                planner.send({"content": None, "tool_calls": [call]}, manager, request_reply=False)
            clerk.initiate_chat(manager, message=REFINE)
        return planner.chat_messages[manager], remembered(manager, *manager.groupchat.agents)

    chat(first=True)
    heard, before = chat(first=False)
    answers = [one for one in heard if one["role"] == "tool"]
    assert [one["content"] for one in answers] == ["The chat ended before this call was made."]
    others = {**before["pairs"], "planner": {}, "chat_manager": {}}
    assert "tool" not in str(others) + str(before["groups"])


def nested(cast: Cast) -> tuple[list[Any], Callable[..., Any]]:
    """Return a group with another group's manager in it, and what begins to talk to it."""
    inner = cast.group("planner", "writer", send_introductions=True)
    inner._name = "inner"
    user, agents = cast.user(), [cast.assistant("chair"), cast.assistant("scribe")]
    chat = autogen.GroupChat(
        agents=[*agents, inner],
        messages=[],
        max_round=5,
        speaker_selection_method="round_robin",
        send_introductions=True,
    )
    outer = autogen.GroupChatManager(chat, "outer", llm_config=cast.llm)
    cast._made.append(outer)
    everybody = [user, outer, *chat.agents, *inner.groupchat.agents]

    def begin(*prompts: str) -> None:
        for prompt in prompts:
            user.initiate_chat(outer, message=prompt, max_turns=1)

    return everybody, begin


def test_a_group_in_a_group_is_remembered(
    cast: Cast, server: ModelServer, store: perdure.Store
) -> None:
    agents, begin = nested(cast)
    with persist(store.session("whole"), *agents):
        begin(CHECKLIST)
        between, first = remembered(*agents), len(server.requests)
        begin(REFINE)
        before = remembered(*agents)
    asked = [one.body["messages"] for one in server.requests]
    assert len(between["groups"]["inner"]) == 3
    for at in range(1, len(asked) + 1):
        name, start = f"failed at {at}", len(server.requests)
        server.fault(status=500, at=start + at)
        agents, begin = nested(cast)
        with pytest.raises(Exception, match="500"), persist(store.session(name), *agents):
            begin(CHECKLIST, REFINE)
        agents, begin = nested(cast)
        with persist(store.session(name), *agents) as chat:
            if chat.finished:
                assert remembered(*agents) == between
            else:
                begin(CHECKLIST)
            begin(REFINE)
            assert remembered(*agents) == before
        again = [one.body["messages"] for one in server.requests[start:]]
        assert again == [*asked[:at], *asked[at - 1 :]], at
        agents, _ = nested(cast)
        with persist(store.session(name), *agents):
            assert remembered(*agents) == before
    assert first < len(asked)


def test_who_joins_a_group_knows_nothing_of_what_was_said_before(
    cast: Cast, store: perdure.Store
) -> None:
    with persist(store.session("s"), manager := cast.group("planner")):
        manager.groupchat.agents[0].initiate_chat(manager, message=CHECKLIST)
        before = remembered(manager, *manager.groupchat.agents)
    for _ in range(2):
        manager = cast.group("planner", "writer")
        agents = [manager, *manager.groupchat.agents]
        with persist(store.session("s"), manager):
            assert remembered(*agents) == before
            assert manager.groupchat.messages[0] is manager.chat_messages[agents[1]][0]  # As ever.
            agents[1].initiate_chat(manager, message=REFINE)
            before = remembered(*agents)


def test_what_was_said_is_not_said_again_to_agents_of_a_class_of_one_s_own(
    cast: Cast, store: perdure.Store
) -> None:
    heard: list[Any] = []

    class Listener(autogen.UserProxyAgent):  # type: ignore[misc]
        def send(self, message: Any, recipient: Any, *args: Any, **kwargs: Any) -> Any:
            return super().send(f"{message} Please.", recipient, *args, **kwargs)

        def receive(self, message: Any, *args: Any, **kwargs: Any) -> Any:
            heard.append(message)
            return super().receive(message, *args, **kwargs)

    def pair() -> tuple[Any, Any]:
        options = {"human_input_mode": "NEVER", "code_execution_config": False}
        user = Listener("user_proxy", max_consecutive_auto_reply=0, **options)
        return user, cast.assistant()

    agents = pair()
    with persist(store.session("s"), *agents):
        agents[0].initiate_chat(agents[1], message=CHECKLIST)
        before = remembered(*agents)
    again = pair()
    with persist(store.session("s"), *again):
        assert remembered(*again) == before
    assert len(heard) == 1
    assert before["pairs"]["assistant"]["user_proxy"][0]["content"] == f"{CHECKLIST} Please."


def test_a_society_of_mind_is_the_same_after_a_restart(
    cast: Cast, server: ModelServer, store: perdure.Store
) -> None:
    mind = pytest.importorskip("autogen.agentchat.contrib.society_of_mind_agent")

    def society() -> list[Any]:
        manager = cast.group("planner", "writer")
        som = mind.SocietyOfMindAgent("som", chat_manager=manager, llm_config=cast.llm)
        cast._made.append(som)
        user = cast.user(max_consecutive_auto_reply=3, default_auto_reply="Go on.")
        return [user, som, manager, *manager.groupchat.agents]

    before: Any = {"pairs": {}, "groups": {"chat_manager": []}}
    for number in range(3):
        agents = society()
        with persist(store.session("s"), *agents):
            assert remembered(*agents) == before
            agents[0].initiate_chat(agents[1], message=f"{CHECKLIST} {number}", max_turns=2)
            before = remembered(*agents)


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_changed_last_in_a_block_is_kept(
    cast: Cast, store: perdure.Store, change: Callable[[list[Any]], None]
) -> None:
    user, assistant = cast.pair()
    with persist(store.session("s"), user, assistant):
        user.initiate_chat(assistant, message=CARD)
        change(assistant.chat_messages[user])
        before = remembered(user, assistant)
    for agents in (cast.pair(), (user, assistant)):
        with persist(store.session("s"), *agents):
            assert remembered(*agents) == before


def test_agents_that_were_cleared_last_in_a_block_have_forgotten(
    cast: Cast, store: perdure.Store
) -> None:
    user, assistant = cast.pair(max_consecutive_auto_reply=2, default_auto_reply="Go on.")
    with persist(store.session("s"), user, assistant):
        user.initiate_chat(assistant, message=CARD)
        user.reset()
        assistant.reset()
    user, assistant = cast.pair()
    with persist(store.session("s"), user, assistant):
        assert remembered(user, assistant)["pairs"] == {}
        assert assistant.get_total_usage() is None
        position = store.session("s").position
    assert store.session("s").position == position  # Nothing was changed in this block.


def test_a_history_that_was_changed_while_others_went_on_is_a_conflict(
    cast: Cast, tmp_path: Path
) -> None:
    user, assistant = cast.pair()
    others = cast.pair()
    with (
        perdure.open(tmp_path / "agents.db") as store,
        perdure.open(tmp_path / "agents.db") as other,
    ):
        with persist(store.session("s"), user, assistant):
            user.initiate_chat(assistant, message=CARD)
            for _ in range(2):
                hide(assistant.chat_messages[user])
                with persist(other.session("s"), *others):
                    others[0].initiate_chat(others[1], message=REFINE)
                    before = remembered(*others)
                with pytest.raises(perdure.ConflictError, match="histories were changed here"):
                    user.initiate_chat(assistant, message="And now?")
                assert remembered(user, assistant) == before
            hide(assistant.chat_messages[user])
            before = remembered(user, assistant)
        with persist(other.session("s"), *cast.pair()) as chat:
            assert remembered(*chat._agents) == before


@pytest.mark.parametrize("request_reply", [True, False])
def test_what_nobody_sends_is_not_heard_outside_of_a_chat(
    cast: Cast, server: ModelServer, store: perdure.Store, *, request_reply: bool
) -> None:
    user, assistant = cast.pair()
    with persist(store.session("s"), user, assistant):
        reason = "a message that 'assistant' receives .* is not recorded"
        match = reason + r": call send\(...\) on 'user_proxy'"
        with pytest.raises(perdure.UsageError, match=match):
            assistant.receive(CARD, user, request_reply=request_reply)
        with pytest.raises(perdure.UsageError, match=r"call a_send\(...\) on 'user_proxy'"):
            asyncio.run(assistant.a_receive(CARD, user, request_reply=request_reply))
        assert remembered(user, assistant)["pairs"] == {}
    assert (store.session("s").position, server.requests) == (0, [])
    assistant.receive(CARD, user, request_reply=False)
