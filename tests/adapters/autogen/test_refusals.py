"""What can not work is refused before anything has changed, with a word on what to do."""

import asyncio
import gc
import sys
from pathlib import Path
from typing import Any

import autogen
import pytest

import perdure
from perdure.adapters.autogen import persist
from perdure.testing import ModelServer
from tests.adapters.autogen.conftest import Cast
from tests.adapters.autogen.scripts import charged, register
from tests.adapters.autogen.test_persist import CHARGE, CHECKLIST, interrupted, said


@pytest.fixture
def begun(cast: Cast, store: perdure.Store) -> perdure.Session:
    user, assistant = cast.pair()
    session = store.session("s")
    with persist(session, user, assistant):
        user.initiate_chat(assistant, message=CHECKLIST)
    return session


def refused(session: perdure.Session, *agents: Any, match: str, **options: Any) -> None:
    """See that agents are refused, and that neither they nor the session have changed."""
    before = session.position, [{**one.chat_messages} for one in agents]
    with pytest.raises(perdure.UsageError, match=match), persist(session, *agents, **options):
        pass
    assert (session.position, [{**one.chat_messages} for one in agents]) == before
    assert all("send" not in vars(one) for one in agents)


def test_an_agent_that_was_renamed(cast: Cast, begun: perdure.Session) -> None:
    agents = cast.user(), cast.assistant("helper")
    refused(begun, *agents, match="holds a chat of assistant, not among the given agents")


def test_another_pair(cast: Cast, begun: perdure.Session) -> None:
    agents = cast.user("me"), cast.assistant("you")
    refused(begun, *agents, match="holds a chat of assistant, user_proxy")


def test_a_pair_whose_names_are_exchanged(cast: Cast, begun: perdure.Session) -> None:
    agents = cast.assistant("user_proxy"), cast.user("assistant")
    match = "agents 'user_proxy' and 'assistant' seem to have swapped names since session 's'"
    refused(begun, *agents, match=match)
    with persist(begun, *cast.pair()) as chat:
        assert chat.finished == 1


def test_members_of_a_group_whose_names_are_exchanged(cast: Cast, store: perdure.Store) -> None:
    def pair(planner: str, writer: str) -> tuple[Any, Any]:
        return cast.assistant("planner", planner), cast.assistant("writer", writer)

    session = store.session("s")
    agents = pair("You plan.", "You write.")
    with persist(session, *agents):
        agents[0].initiate_chat(agents[1], message=CHECKLIST, max_turns=1)
    match = "agents 'planner' and 'writer' seem to have swapped names"
    refused(session, *pair("You write.", "You plan."), match=match)
    for others in (("You plan well.", "You write."), ("You write.", "You write.")):
        with persist(session, *pair(*others)) as chat:  # Instructions may be changed.
            assert chat.finished == 1


def test_a_member_of_a_group_that_is_missing(cast: Cast, store: perdure.Store) -> None:
    manager = cast.group("planner", "writer")
    session = store.session("group")
    with persist(session, manager):
        manager.groupchat.agents[0].initiate_chat(manager, message=CHECKLIST)
    refused(session, cast.group("planner"), match="holds a chat of writer")
    refused(
        session,
        cast.group("planner"),
        cast.assistant("writer"),
        match="'writer' is in the group of 'chat_manager'",
    )
    agents = [cast.user("clerk"), cast.assistant("planner"), cast.assistant("writer")]
    refused(session, *agents, cast.assistant("chat_manager"), match="is a group's manager")
    with persist(session, cast.group("planner", "writer", "editor")) as chat:  # One more may come.
        assert chat.finished == 1


def test_a_group_in_another_order_can_not_go_on(
    cast: Cast, server: ModelServer, store: perdure.Store
) -> None:
    manager, session = cast.group("planner", "writer"), store.session("group")
    server.fault(status=500)
    with persist(session, manager), pytest.raises(Exception, match="500"):
        manager.groupchat.agents[0].initiate_chat(manager, message=CHECKLIST)
    match = "was clerk, planner, writer when its chat was interrupted, and is clerk, writer"
    refused(session, cast.group("writer", "planner"), match=match)


def test_a_tool_that_is_gone(cast: Cast, server: ModelServer, store: perdure.Store) -> None:
    user, assistant = cast.pair(max_consecutive_auto_reply=1)
    register(charged, assistant, user)
    session = store.session("s")
    server.fault(status=500)
    with persist(session, user, assistant), pytest.raises(Exception, match="500"):
        user.initiate_chat(assistant, message=CHARGE)
    refused(session, *cast.pair(), match="'user_proxy' had a tool 'charge' when its chat was")


def test_an_agent_that_would_answer_otherwise_can_not_go_on(
    cast: Cast, server: ModelServer, store: perdure.Store
) -> None:
    session = store.session("s")
    interrupted(cast, server, session)
    plain = autogen.AssistantAgent("assistant", "You are a clerk.", llm_config=False)
    refused(session, cast.user(), plain, match="'assistant' had a model when its chat was")
    strict = cast.assistant(system="You are strict.")
    refused(session, cast.user(), strict, match="'assistant' was given other instructions when")
    asked = len(server.requests)
    with persist(session, *cast.pair()) as chat:
        assert chat.resume() is not None
    assert len(server.requests) == asked + 1


def test_a_chat_that_nobody_can_go_on_with_can_be_given_up(
    cast: Cast, server: ModelServer, store: perdure.Store
) -> None:
    session = store.session("s")
    interrupted(cast, server, session)
    agents = cast.user(), autogen.AssistantAgent("assistant", "You are a clerk.", llm_config=False)
    refused(session, *agents, match=r"or abandon it with persist\(...\).abandon\(\)")
    persist(session, *agents).abandon("its model is gone")
    with persist(session, *agents) as chat:
        assert (chat.interrupted, said(*agents)) == (None, [])
    with pytest.raises(perdure.UsageError, match="nothing to abandon"):
        chat.abandon()


def test_an_effect_of_a_tool_that_nobody_has(cast: Cast, store: perdure.Store) -> None:
    session = store.session("s")
    refused(session, *cast.pair(), tools={"pay": "idempotent"}, match="no agent has a tool 'pay'")
    user, assistant = cast.pair()
    register(charged, assistant, user)
    refused(session, user, assistant, tools={"charge": "harmless"}, match="no effect 'harmless'")


def test_a_session_that_holds_another_conversation(cast: Cast, store: perdure.Store) -> None:
    session = store.session("s")
    session.append({"role": "user", "content": "Hello"})
    refused(session, *cast.pair(), match="is not one of AutoGen agents")


def test_agents_with_a_history_of_their_own(cast: Cast, begun: perdure.Session) -> None:
    user, assistant = cast.pair()
    user.initiate_chat(assistant, message="Something else.")
    with (
        pytest.raises(perdure.UsageError, match="a history that is not the session's"),
        persist(begun, user, assistant),
    ):
        pass
    assert user.chat_messages[assistant][0]["content"] == "Something else."


def test_agents_that_are_no_chat(cast: Cast, store: perdure.Store) -> None:
    session = store.session("s")
    with pytest.raises(perdure.UsageError, match="pass all agents of the chat"):
        persist(session, cast.user())
    with pytest.raises(perdure.UsageError, match="two agents are called 'assistant'"):
        persist(session, cast.assistant(), cast.assistant())
    with pytest.raises(perdure.UsageError, match="a str is not an agent"):
        persist(session, cast.user(), "assistant")
    with pytest.raises(perdure.UsageError, match="pass a session of"):
        persist("s", *cast.pair())  # type: ignore[arg-type]


def test_an_agent_that_was_not_given(cast: Cast, server: ModelServer, begun: Any) -> None:
    user, assistant = cast.pair(max_consecutive_auto_reply=2)
    reviewer = cast.assistant("reviewer")
    user.register_nested_chats(
        [{"recipient": reviewer, "message": "Review.", "max_turns": 1}], trigger=assistant
    )
    asked = len(server.requests)
    with persist(begun, user, assistant):
        with pytest.raises(perdure.UsageError, match="'reviewer' takes part in the chat"):
            user.initiate_chat(assistant, message=CHECKLIST, max_turns=2)
        with pytest.raises(perdure.UsageError, match="'reviewer' was not passed"):
            user.initiate_chat(reviewer, message=CHECKLIST)
    assert not any(reviewer.chat_messages.values())
    assert len(server.requests) == asked + 1


def test_somebody_else_who_talks_to_an_agent(
    cast: Cast, server: ModelServer, begun: perdure.Session
) -> None:
    user, assistant = cast.pair()
    asked = len(server.requests)
    with persist(begun, user, assistant):
        with pytest.raises(perdure.UsageError, match="'stranger' was not passed to persist"):
            cast.user("stranger").initiate_chat(assistant, message=CHECKLIST)
        with pytest.raises(perdure.UsageError, match="another agent was passed to persist"):
            user.initiate_chat(cast.assistant(), message=CHECKLIST)
        with pytest.raises(perdure.UsageError, match="a str is not an agent"):
            user.initiate_chat("assistant", message=CHECKLIST)
        if hasattr(assistant, "run"):
            with pytest.raises(perdure.UsageError, match=r"run\(\) creates its own"):
                assistant.run(message=CHECKLIST, max_turns=1).process()
    assert len(server.requests) == asked
    cast.user("stranger").initiate_chat(assistant, message=CHECKLIST)
    assert len(server.requests) == asked + 1


def test_a_chat_that_is_not_entered_or_left(
    cast: Cast, server: ModelServer, store: perdure.Store
) -> None:
    session = store.session("s")
    interrupted(cast, server, session)

    def forget() -> None:
        persist(session, *cast.pair())
        gc.collect()

    with pytest.warns(RuntimeWarning, match="never entered, and nothing was recorded"):
        forget()
    with persist(session, *cast.pair()) as chat:
        assert chat.interrupted is not None
    asked = len(server.requests)
    for use in (chat.resume, lambda: chat.finished, lambda: chat.interrupted):
        with pytest.raises(perdure.UsageError, match="enter it"):
            use()
    with pytest.raises(perdure.UsageError, match="enter it"):
        asyncio.run(chat.a_resume())
    assert len(server.requests) == asked


def test_a_chat_that_is_not_waited_for_stays_kept(cast: Cast, store: perdure.Store) -> None:
    user, assistant = cast.pair()
    session = store.session("s")

    async def begin() -> Any:
        with persist(session, user, assistant):
            running = asyncio.ensure_future(user.a_initiate_chat(assistant, message=CHECKLIST))
            await asyncio.sleep(0)  # It begins.
        return running

    async def wait() -> Any:
        with pytest.raises(perdure.UsageError, match="a chat is still running where"):
            await begin()
        (running,) = asyncio.all_tasks() - {asyncio.current_task()}
        return await running

    create = autogen.OpenAIWrapper.create
    assert len(asyncio.run(wait()).chat_history) == 2
    assert len(session.messages()) == 2
    assert session.interrupted == ()
    assert autogen.OpenAIWrapper.create is create
    assert "send" not in vars(user)


def test_a_queue_that_is_none_and_one_that_can_not_be_kept(
    cast: Cast, server: ModelServer, store: perdure.Store
) -> None:
    user, assistant = cast.pair()
    session = store.session("s")
    with persist(session, user, assistant) as chat:
        for queue in ("assistant", [{"message": CHECKLIST}], [assistant]):
            with pytest.raises(perdure.UsageError, match="pass a list of chats"):
                user.initiate_chats(queue)
        one = {"recipient": assistant, "message": CHECKLIST, "max_turns": 1}
        with pytest.raises(perdure.UsageError, match="'reviewer' was not passed"):
            user.initiate_chats([one, {**one, "recipient": cast.assistant("reviewer")}])
        with pytest.raises(perdure.UsageError, match="call an agent's own initiate_chats"):
            autogen.initiate_chats([{**one, "sender": user}])
        assert (session.position, server.requests) == (0, [])
        server.fault(status=500)
        with pytest.raises(Exception, match="500"):
            user.initiate_chats([{**one, "summary_method": lambda *_: "Done."}])
        with pytest.raises(perdure.UsageError, match="had a summary_method that cannot be stored"):
            chat.resume()


def test_a_group_pattern(cast: Cast, server: ModelServer, store: perdure.Store) -> None:
    patterns = pytest.importorskip("autogen.agentchat.group.patterns")
    from autogen.agentchat import initiate_group_chat

    user, assistant = cast.pair()
    pattern = patterns.RoundRobinPattern(assistant, [assistant], user)
    session = store.session("s")
    with (
        persist(session, user, assistant),
        pytest.raises(perdure.UsageError, match="group patterns create their own"),
    ):
        initiate_group_chat(pattern, CHECKLIST, max_rounds=2)
    assert (session.position, server.requests) == (0, [])


def test_a_tool_that_hands_over(cast: Cast, server: ModelServer, store: perdure.Store) -> None:
    class ReplyResult:
        pass

    def charge(id: int) -> ReplyResult:
        return ReplyResult()

    user, assistant = cast.pair()
    user.register_function({"charge": charge})
    match = "the tool 'charge' hands over to another agent"
    refused(store.session("s"), user, assistant, match=match)
    charge.__annotations__["return"] = str  # It says so too late.
    user, assistant = cast.pair(max_consecutive_auto_reply=1)
    user.register_function({"charge": charge})
    assistant.register_for_llm(name="charge", description="Charge.")(charge)
    with (
        persist(store.session("s"), user, assistant),
        pytest.raises(perdure.UsageError, match=match),
    ):
        user.initiate_chat(assistant, message=CHARGE)


@pytest.mark.parametrize("version", ["0.2.34", "0.15.0", "1.0.0", "unknown"])
def test_a_version_that_was_never_tried(
    cast: Cast, store: perdure.Store, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(autogen, "__version__", version)
    match = f"`autogen` {version} is not a tested version"
    with pytest.raises(perdure.UnsupportedError, match=match):
        persist(store.session("s"), *cast.pair())


def test_no_framework_and_another_one(store: perdure.Store, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "autogen", None)
    with pytest.raises(perdure.UnsupportedError, match="pip install"):
        persist(store.session("s"))
    monkeypatch.setitem(sys.modules, "autogen", sys)  # As other packages of that name are.
    with pytest.raises(perdure.UnsupportedError, match="does not have the classic API"):
        persist(store.session("s"))


def test_content_that_can_not_be_stored_is_not_handed_over(
    cast: Cast, server: ModelServer, store: perdure.Store
) -> None:
    user, assistant = cast.pair()
    message = {"content": lambda context: context["word"], "context": {"word": "Hello"}}
    with (
        persist(store.session("s"), user, assistant),
        pytest.raises(perdure.UsageError, match="cannot be stored as the content"),
    ):
        user.initiate_chat(assistant, message=message)
    assert server.requests == []


def test_a_chat_that_failed_before_anything_was_said_is_none(
    cast: Cast, server: ModelServer, store: perdure.Store
) -> None:
    user, assistant = cast.pair()
    with persist(store.session("s"), user, assistant) as chat:
        for nonsense in ({"content": print}, {"role": "user"}, 17):
            with pytest.raises(Exception, match=r"\w"):
                user.initiate_chat(assistant, message=nonsense)
            assert (chat.interrupted, chat.finished) == (None, 0)
        result = user.initiate_chat(assistant, message=CHECKLIST)
    assert [len(result.chat_history), len(server.requests)] == [2, 1]
    assert store.session("s").interrupted == ()


def test_one_session_is_for_one_chat_at_a_time(cast: Cast, store: perdure.Store) -> None:
    import contextvars

    user, assistant = cast.pair()
    outside = contextvars.copy_context()
    errors = []

    def meanwhile(recipient: Any, messages: Any, sender: Any, config: Any) -> tuple[bool, None]:
        try:
            outside.run(user.initiate_chat, assistant, message="Another.")
        except perdure.UsageError as error:
            errors.append(str(error))
        return False, None

    assistant.register_reply([autogen.Agent, None], meanwhile, position=0)
    with persist(store.session("s"), user, assistant):
        user.initiate_chat(assistant, message=CHECKLIST)
    assert errors == ["another chat of this session is running: run one chat at a time per session"]


def test_a_store_that_breaks_stops_the_chat(cast: Cast, tmp_path: Path) -> None:
    """The framework makes a message of whatever a tool raises; it must not go on with that."""
    user, assistant = cast.pair(max_consecutive_auto_reply=1)
    ran = []

    def charge(id: int) -> str:
        ran.append(id)
        store.close()
        return f"charged {id}"

    register(charge, assistant, user)
    store = perdure.open(tmp_path / "s.db")
    with persist(store.session("s"), user, assistant), pytest.raises(perdure.PerdureError):
        user.initiate_chat(assistant, message=CHARGE)
    assert ran == [17]
    assert len(user.chat_messages[assistant]) == 2


@pytest.mark.parametrize(("number", "error"), [(1, perdure.UsageError), (3, perdure.VersionError)])
def test_a_chat_that_was_interrupted_is_not_gone_on_with_in_another_format(
    cast: Cast, server: ModelServer, store: perdure.Store, number: int, error: type[Exception]
) -> None:
    session = store.session("s")
    interrupted(cast, server, session)
    session.set("autogen", {**session.get("autogen"), "format": number})
    with pytest.raises(error, match=r"format 1|version 3"), persist(session, *cast.pair()):
        pass


def test_the_framework_s_own_way_to_resume_a_group(cast: Cast, store: perdure.Store) -> None:
    manager, session = cast.group("planner"), store.session("s")
    with persist(session, manager):
        manager.groupchat.agents[0].initiate_chat(manager, message=CHECKLIST)
        before = session.position, [*manager.groupchat.messages]
        for resume in (manager.resume, manager.a_resume):
            with pytest.raises(perdure.UsageError, match="its own resume would duplicate it"):
                resume(messages=[*manager.groupchat.messages])
        assert (session.position, [*manager.groupchat.messages]) == before
    assert "resume" not in vars(manager)


def test_agents_that_are_kept_already(cast: Cast, store: perdure.Store) -> None:
    user, assistant = cast.pair()
    with persist(store.session("s"), user, assistant):
        with pytest.raises(perdure.UsageError, match="'user_proxy' is already in use"):
            persist(store.session("other"), user, assistant).__enter__()
        user.initiate_chat(assistant, message=CHECKLIST)
    assert [store.session(name).position > 0 for name in ("s", "other")] == [True, False]
