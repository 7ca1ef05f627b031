"""What agents know after a restart, and what happens to a chat that did not come to its end."""

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import autogen
import pytest

import perdure
from perdure.adapters.autogen import persist
from perdure.journal import codec
from perdure.testing import ModelServer
from tests.adapters.autogen.conftest import Cast
from tests.adapters.autogen.scripts import charged, register

CHECKLIST = "Draft a claims escalation checklist."
REFINE = "Refine that for high-value policies only."
CHARGE = 'Do it. CALL charge {"id": 17}'


def sent(server: ModelServer, at: int = -1) -> list[tuple[str, str]]:
    """Return what the model was told in a request, as roles and words."""
    return [(one["role"], one.get("content")) for one in server.requests[at].body["messages"]]


def said(agent: Any, peer: Any) -> list[tuple[str, str]]:
    return [(one["role"], one["content"]) for one in agent.chat_messages[peer]]


def test_a_second_process_goes_on_with_what_the_first_said(
    cast: Cast, server: ModelServer, store: perdure.Store
) -> None:
    user, assistant = cast.pair()
    with persist(store.session("s"), user, assistant):
        first = user.initiate_chat(assistant, message=CHECKLIST)
    user, assistant = cast.pair()
    with persist(store.session("s"), user, assistant) as chat:
        assert chat.finished == 1
        second = user.initiate_chat(assistant, message=REFINE)
    assert sent(server) == [
        ("system", "You are a clerk."),
        ("user", CHECKLIST),
        ("assistant", first.summary),
        ("user", REFINE),
    ]
    assert [one["content"] for one in second.chat_history] == [
        CHECKLIST,
        first.summary,
        REFINE,
        second.summary,
    ]


def test_each_side_has_its_own_roles(cast: Cast, store: perdure.Store) -> None:
    user, assistant = cast.pair()
    with persist(store.session("s"), user, assistant):
        answer = user.initiate_chat(assistant, message=CHECKLIST).summary
    user, assistant = cast.pair()
    with persist(store.session("s"), user, assistant):
        assert said(assistant, user) == [("user", CHECKLIST), ("assistant", answer)]
        assert said(user, assistant) == [("assistant", CHECKLIST), ("user", answer)]
        mine, yours = user.chat_messages[assistant], assistant.chat_messages[user]
        assert all(one is not other for one in mine for other in yours)


@pytest.mark.parametrize("clear_history", [True, False])
def test_initiate_chat_goes_on_whatever_clear_history_says(
    cast: Cast,
    store: perdure.Store,
    caplog: pytest.LogCaptureFixture,
    *,
    clear_history: bool,
) -> None:
    user, assistant = cast.pair()
    caplog.set_level(logging.INFO, "perdure.adapters.autogen")
    with persist(store.session("s"), user, assistant):
        user.initiate_chat(assistant, message=CHECKLIST)
        assert "clear_history" not in caplog.text
        result = user.initiate_chat(assistant, message=REFINE, clear_history=clear_history)
    assert len(result.chat_history) == 4
    assert ("clear_history=False is used instead of True" in caplog.text) == clear_history


@pytest.mark.parametrize("async_code", [False, True])
def test_a_message_is_durable_before_it_is_handed_over(
    cast: Cast, tmp_path: Path, *, async_code: bool
) -> None:
    user, assistant = cast.pair()
    seen = []

    def look(recipient: Any, messages: Any, sender: Any, config: Any) -> tuple[bool, None]:
        with perdure.open(tmp_path / "agents.db") as other:  # As another process sees it.
            seen.append((other.session("s").last_message or {}).get("content"))
        return False, None

    assistant.register_reply([autogen.Agent, None], look, position=0)
    with (
        perdure.open(tmp_path / "agents.db") as store,
        persist(store.session("s"), user, assistant),
    ):
        if async_code:
            asyncio.run(user.a_initiate_chat(assistant, message=CHECKLIST))
        else:
            user.initiate_chat(assistant, message=CHECKLIST)
    assert seen == [CHECKLIST]


def test_who_said_what_to_whom_stands_in_the_record(cast: Cast, store: perdure.Store) -> None:
    user, assistant = cast.pair()
    session = store.session("s")
    with persist(session, user, assistant):
        user.initiate_chat(assistant, message=CHECKLIST)
    found: list[Any] = [one.content for one in session.records() if one.kind == "message"]
    assert [(one.author, one.recipient) for one in found] == [
        ("user_proxy", "assistant"),
        ("assistant", "user_proxy"),
    ]
    assert session.messages(format="openai.chat", perspective="assistant")[0]["role"] == "user"


def test_usage_replies_and_results_are_those_of_a_run_that_was_not_interrupted(
    cast: Cast, server: ModelServer, store: perdure.Store
) -> None:
    options = {"max_consecutive_auto_reply": 2, "default_auto_reply": "Go on."}
    user, assistant = cast.pair(**options)
    with persist(store.session("whole"), user, assistant):
        whole = user.initiate_chat(assistant, message=CHECKLIST)
        usage = assistant.get_total_usage(), assistant.get_actual_usage()
    server.fault(status=500, at=len(server.requests) + 3)
    again_user, again = cast.pair(**options)
    with persist(store.session("s"), again_user, again), pytest.raises(Exception, match="500"):
        again_user.initiate_chat(again, message=CHECKLIST)
    asked = len(server.requests)
    user2, assistant2 = cast.pair(**options)
    with persist(store.session("s"), user2, assistant2) as chat:
        assert chat.interrupted == "the chat that user_proxy started with assistant"
        result = user2.initiate_chat(assistant2, message=CHECKLIST)
        assert chat.interrupted is None
    assert len(server.requests) == asked + 1  # The two answers that were there are not paid for.
    assert (assistant2.get_total_usage(), assistant2.get_actual_usage()) == usage
    assert (result.summary, result.cost) == (whole.summary, whole.cost)
    assert result.chat_history == whole.chat_history


def test_a_chat_that_failed_goes_on_in_the_same_process(
    cast: Cast, server: ModelServer, store: perdure.Store
) -> None:
    user, assistant = cast.pair()
    server.fault(status=500)
    with persist(store.session("s"), user, assistant):
        with pytest.raises(Exception, match="500"):
            user.initiate_chat(assistant, message=CHECKLIST)
        result = user.initiate_chat(assistant, message=CHECKLIST)
    assert [one["content"] for one in result.chat_history] == [CHECKLIST, result.summary]
    assert len(store.session("s").messages()) == 2


def interrupted(cast: Cast, server: ModelServer, session: perdure.Session) -> None:
    """Leave a chat that its model did not answer."""
    user, assistant = cast.pair()
    server.fault(status=500)
    with persist(session, user, assistant), pytest.raises(Exception, match="500"):
        user.initiate_chat(assistant, message=CHECKLIST)


def test_another_message_does_not_go_on_with_an_interrupted_chat(
    cast: Cast, server: ModelServer, store: perdure.Store
) -> None:
    session = store.session("s")
    interrupted(cast, server, session)
    user, assistant = cast.pair()
    with persist(session, user, assistant) as chat:
        with pytest.raises(perdure.DivergenceError, match=r"call resume\(\) first"):
            user.initiate_chat(assistant, message=REFINE)
        result = chat.resume()
        assert result.chat_history[0]["content"] == CHECKLIST
        assert chat.resume() is None
        assert len(user.initiate_chat(assistant, message=REFINE).chat_history) == 4


def test_a_chat_that_is_given_up_leaves_the_agents_as_they_were(
    cast: Cast, server: ModelServer, store: perdure.Store
) -> None:
    session = store.session("s")
    interrupted(cast, server, session)
    user, assistant = cast.pair()
    with persist(session, user, assistant) as chat:
        chat.abandon("asked for something else")
        assert chat.interrupted is None
        with pytest.raises(perdure.UsageError, match="nothing to abandon"):
            chat.abandon()
        assert len(user.initiate_chat(assistant, message=REFINE).chat_history) == 2
    user, assistant = cast.pair()
    with persist(session, user, assistant):
        assert said(user, assistant)[0][1] == REFINE


@pytest.mark.parametrize("how", ["again", "resume", "async"])
def test_a_queue_of_chats_goes_on_where_it_was(
    cast: Cast, server: ModelServer, store: perdure.Store, how: str
) -> None:
    def begin(name: str) -> Any:
        agents = [cast.user(), *(cast.assistant(name) for name in ("planner", "writer", "editor"))]
        queue = [
            {"chat_id": id, "recipient": one, "message": f"{one.name}!", "max_turns": 1}
            for id, one in enumerate(agents[1:])
        ]
        queue[2]["prerequisites"] = [0, 1]
        with persist(store.session(name), *agents) as chat:
            if how == "resume" and chat.interrupted:
                assert chat.interrupted == "the chats that user_proxy started with " + ", ".join(
                    one.name for one in agents[1:]
                )
                results = chat.resume()
            elif how == "async":
                results = asyncio.run(agents[0].a_initiate_chats(queue))
                results = [results[at] for at in range(3)]
            else:
                results = agents[0].initiate_chats(queue)
            assert (chat.interrupted, chat.finished) == (None, 1)
        assert "carryover" not in queue[0]  # The framework changed a copy.
        return [(one.summary, one.chat_history) for one in results]

    whole = begin("whole")
    assert whole[1][0] in str(whole[2][1][0])
    server.fault(status=500, at=len(server.requests) + 3)
    with pytest.raises(Exception, match="500"):
        begin("s")
    assert begin("s") == whole
    assert len(server.requests) == 3 + 3 + 1


def test_code_that_says_something_else_is_told_so(
    cast: Cast, server: ModelServer, store: perdure.Store
) -> None:
    session = store.session("s")
    interrupted(cast, server, session)
    user, assistant = cast.pair()
    user.register_hook("process_message_before_send", lambda message, **_: f"{message} Please.")
    match = "the message of user_proxy to assistant"
    with (
        persist(session, user, assistant),
        pytest.raises(perdure.DivergenceError, match=match),
    ):
        user.initiate_chat(assistant, message=CHECKLIST)


def test_a_tool_is_run_once_and_its_error_is_told_the_same_again(
    cast: Cast, server: ModelServer, store: perdure.Store
) -> None:
    ran = []

    def charge(id: int) -> str:
        ran.append(id)
        raise ValueError(f"no such claim: {id}")

    def chat() -> Any:
        user, assistant = cast.pair(max_consecutive_auto_reply=1)
        register(charge, assistant, user)
        with persist(store.session("s"), user, assistant):
            return user.initiate_chat(assistant, message=CHARGE)

    server.fault(status=500, at=len(server.requests) + 2)
    with pytest.raises(Exception, match="500"):
        chat()
    assert ran == [17]
    told = [one["content"] for one in chat().chat_history]
    assert ran == [17]
    assert told[2] == "Error: no such claim: 17"
    asked = [one.body["messages"] for one in server.requests]
    assert asked[1] == asked[2]


@pytest.mark.parametrize(
    ("value", "text"),
    [((1, "a"), "(1, 'a')"), ("a\ud800", "a?")],
    ids=["tuple", "surrogate"],
)
def test_a_result_that_cannot_be_stored_is_told_the_same_again(
    value: Any, text: str, cast: Cast, server: ModelServer, store: perdure.Store
) -> None:
    ran = []

    def charge(id: int) -> Any:
        ran.append(id)
        return value

    def chat() -> Any:
        user, assistant = cast.pair(max_consecutive_auto_reply=1)
        register(charge, assistant, user)
        with persist(store.session("s"), user, assistant):
            return user.initiate_chat(assistant, message=CHARGE)

    server.fault(status=500, at=len(server.requests) + 2)
    with pytest.raises(Exception, match="500"):
        chat()
    assert [one["content"] for one in chat().chat_history][2] == text
    assert ran == [17]
    asked = [one.body["messages"] for one in server.requests]
    assert asked[1] == asked[2]
    effects = [one for one in store.session("s").effects.list() if one.tool == "charge"]
    assert [one.state for one in effects] == ["succeeded"]


def test_a_result_that_is_too_large_does_not_stop_a_chat_for_good(
    cast: Cast, store: perdure.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message about it cannot be stored, so the chat fails; then it goes on without it."""
    monkeypatch.setattr(codec, "PAYLOAD_MAX", 20_000)
    ran = []

    def charge(id: int) -> str:
        ran.append(id)
        return "x" * 30_000

    def chat() -> Any:
        user, assistant = cast.pair(max_consecutive_auto_reply=1)
        register(charge, assistant, user)
        with persist(store.session("s"), user, assistant):
            return user.initiate_chat(assistant, message=CHARGE)

    with pytest.raises(perdure.UsageError, match="exceed the limit"):
        chat()
    told = [one["content"] for one in chat().chat_history][2]
    assert told == "The call succeeded. Its result of type str could not be stored."
    assert ran == [17]
    effects = [one for one in store.session("s").effects.list() if one.tool == "charge"]
    assert [(one.state, one.unstored) for one in effects] == [("succeeded", "str")]


def test_a_tool_that_an_agent_got_in_the_middle_of_a_chat_is_run_once(
    cast: Cast, server: ModelServer, store: perdure.Store
) -> None:
    done: list[int] = []

    def charge(id: int) -> str:
        done.append(id)
        return charged(id)

    def begin() -> Any:
        user, assistant = cast.pair(max_consecutive_auto_reply=3, default_auto_reply=CHARGE)

        def learn(*_: Any, **__: Any) -> tuple[bool, None]:
            if "charge" not in user.function_map:
                register(charge, assistant, user)
            return False, None

        user.register_reply([autogen.Agent, None], learn)
        with persist(store.session("s"), user, assistant):
            return user.initiate_chat(assistant, message=CHECKLIST, max_turns=3)

    server.fault(status=500, at=3)
    with pytest.raises(Exception, match="500"):
        begin()
    assert done == [17]
    assert charged(17) in [one["content"] for one in begin().chat_history]
    assert done == [17]


@pytest.mark.parametrize("policy", ["unsafe", "idempotent"])
def test_an_async_tool_that_is_cancelled_has_not_failed(
    cast: Cast, store: perdure.Store, policy: Any
) -> None:
    """As after a crash, its policy decides whether it is called again."""
    made: list[int] = []

    async def begin(*, cancel: bool) -> Any:
        user, assistant = cast.pair(max_consecutive_auto_reply=3)
        inside = asyncio.Event()

        async def charge(id: int) -> str:
            made.append(id)
            inside.set()
            if cancel:
                await asyncio.sleep(30)
            return charged(id)

        register(charge, assistant, user)
        with persist(store.session("s"), user, assistant, tools={"charge": policy}):
            running = asyncio.ensure_future(user.a_initiate_chat(assistant, message=CHARGE))
            if cancel:
                await inside.wait()
                running.cancel()
            return await running

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(begin(cancel=True))
    result = asyncio.run(begin(cancel=False))
    told = str(result.chat_history)
    assert ("UNKNOWN: It was interrupted by CancelledError" in told) == (policy == "unsafe")
    assert (charged(17) in told) == (policy == "idempotent")
    assert made == ([17] if policy == "unsafe" else [17, 17])


def test_instructions_that_a_tool_changed_are_those_after_a_restart(
    cast: Cast, server: ModelServer, store: perdure.Store
) -> None:
    def chat() -> Any:
        user, assistant = cast.pair(max_consecutive_auto_reply=1)

        def charge(id: int) -> str:
            assistant.update_system_message("You have charged somebody.")
            return f"charged {id}"

        register(charge, assistant, user)
        with persist(store.session("s"), user, assistant) as chat:
            if not chat.finished:
                user.initiate_chat(assistant, message=CHARGE)
            return assistant.system_message

    server.fault(status=500, at=len(server.requests) + 2)
    with pytest.raises(Exception, match="500"):
        chat()
    assert chat() == "You have charged somebody."
    assert sent(server)[0] == ("system", "You have charged somebody.")
    assert chat() == "You have charged somebody."


def test_what_agents_know_by_name_is_known_after_a_restart(
    cast: Cast, server: ModelServer, store: perdure.Store, caplog: pytest.LogCaptureFixture
) -> None:
    update = getattr(autogen, "UpdateSystemMessage", None)
    if update is None:
        pytest.skip("it has no context variables")
    from autogen.agentchat.group import ContextVariables

    def chat(name: str, given: Any = "none") -> Any:
        user = cast.user(max_consecutive_auto_reply=3)
        assistant = autogen.AssistantAgent(
            "assistant",
            llm_config=cast.llm,
            context_variables=ContextVariables({"charged": given}),
            update_agent_state_before_reply=[update("You have charged {charged}.")],
        )
        cast._made.append(assistant)

        def charge(id: int) -> str:
            assistant.context_variables["charged"] = str(id)
            return f"charged {id}"

        register(charge, assistant, user)
        with persist(store.session(name), user, assistant) as kept:
            prompt = CHARGE if not kept.finished else REFINE
            history = user.initiate_chat(assistant, message=prompt, max_turns=2).chat_history
            return history, assistant.context_variables.to_dict()

    whole = chat("whole")
    assert sent(server)[0] == ("system", "You have charged 17.")
    server.fault(status=500, at=len(server.requests) + 2)
    with pytest.raises(Exception, match="500"):
        chat("s")
    assert chat("s") == whole
    chat("s")
    assert sent(server)[0] == ("system", "You have charged 17.")
    assert "using the code's" not in caplog.text
    chat("s", given="all")
    assert sent(server)[0] == ("system", "You have charged all.")
    assert "the variables of assistant were changed both in a chat and in the code" in caplog.text
    chat("other", given=print)
    assert "the context variables of assistant are not saved" in caplog.text


def test_instructions_that_the_code_changed_are_the_code_s(
    cast: Cast, store: perdure.Store, caplog: pytest.LogCaptureFixture
) -> None:
    user, assistant = cast.pair()
    with persist(store.session("s"), user, assistant):
        assistant.update_system_message("You are strict.")
        user.initiate_chat(assistant, message=CHECKLIST)
    user, assistant = cast.pair()
    with persist(store.session("s"), user, assistant):
        assert assistant.system_message == "You are strict."
    user, assistant = cast.user(), cast.assistant(system="You are lenient.")
    with persist(store.session("s"), user, assistant):
        assert assistant.system_message == "You are lenient."
    assert "using the code's" in caplog.text


def test_what_a_human_said_is_not_asked_again(
    cast: Cast, server: ModelServer, store: perdure.Store
) -> None:
    asked: list[str] = []

    def chat() -> Any:
        user, assistant = cast.pair(max_consecutive_auto_reply=None, human_input_mode="ALWAYS")
        words = iter(["And for cars?", "exit"] if not asked else ["exit"])

        def ask(prompt: str, **_: Any) -> str:
            asked.append(prompt)
            return next(words)

        user.get_human_input = ask
        with persist(store.session("s"), user, assistant):
            return user.initiate_chat(assistant, message=CHECKLIST)

    server.fault(status=500, at=len(server.requests) + 2)
    with pytest.raises(Exception, match="500"):
        chat()
    result = chat()
    assert len(asked) == 2
    assert result.human_input == ["And for cars?", "exit"]
    assert result.chat_history[2]["content"] == "And for cars?"


def test_what_a_human_said_is_known_after_a_restart(cast: Cast, store: perdure.Store) -> None:
    def person(*words: str) -> tuple[Any, Any]:
        user, assistant = cast.pair(max_consecutive_auto_reply=None, human_input_mode="ALWAYS")
        told = iter(words)
        user.get_human_input = lambda *_, **__: next(told)
        return user, assistant

    user, assistant = person("And for cars?", "exit")
    with persist(store.session("s"), user, assistant):
        user.initiate_chat(assistant, message=CHECKLIST)
    user, assistant = person("And for boats?", "exit")
    with persist(store.session("s"), user, assistant):
        result = user.initiate_chat(assistant, message=REFINE)
    assert result.human_input == ["And for cars?", "exit", "And for boats?", "exit"]


def test_a_message_that_is_sent_without_a_chat_is_kept_and_answered(
    cast: Cast, store: perdure.Store
) -> None:
    user, assistant = cast.pair()
    with persist(store.session("s"), user, assistant):
        user.initiate_chat(assistant, message=CHECKLIST)
    user, assistant = cast.pair()
    with persist(store.session("s"), user, assistant) as chat:
        user.send(REFINE, assistant)
        assert chat.finished == 2
    assert len(store.session("s").messages()) == 4


def test_a_group_has_its_rounds_its_speakers_and_its_introductions(
    cast: Cast, server: ModelServer, store: perdure.Store
) -> None:
    def chat(session: str) -> Any:
        manager = cast.group("planner", "writer", max_round=4, send_introductions=True)
        clerk = manager.groupchat.agents[0]
        with persist(store.session(session), manager):
            clerk.initiate_chat(manager, message=CHECKLIST)
        return manager.groupchat.messages

    whole = chat("whole")
    server.fault(status=500, at=len(server.requests) + 2)
    with pytest.raises(Exception, match="500"):
        chat("s")
    assert chat("s") == whole
    assert [one["name"] for one in whole] == ["clerk", "planner", "writer", "clerk"]
    introductions = [one for one in store.session("s").messages() if "Hello" in one["content"]]
    assert len(introductions) == 3


def test_speakers_that_chance_chooses_are_the_same_again(
    cast: Cast, server: ModelServer, store: perdure.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[str] = []

    def choose(agents: Any) -> Any:
        chosen.append(agents[len(chosen) % len(agents)].name)
        return agents[(len(chosen) - 1) % len(agents)]

    monkeypatch.setattr("random.choice", choose)

    def chat() -> Any:
        manager = cast.group("planner", "writer", max_round=5, speaker_selection_method="random")
        with persist(store.session("s"), manager):
            manager.groupchat.agents[0].initiate_chat(manager, message=CHECKLIST)
        return [one["name"] for one in manager.groupchat.messages]

    server.fault(status=500, at=len(server.requests) + 2)
    with pytest.raises(Exception, match="500"):
        chat()
    assert chat() == ["clerk", *chosen]
    assert len(chosen) == 4


def test_two_sessions_in_two_threads_keep_apart(cast: Cast, store: perdure.Store) -> None:
    def chat(name: str) -> None:
        user, assistant = cast.pair(max_consecutive_auto_reply=3, default_auto_reply=name)
        with persist(store.session(name), user, assistant):
            user.initiate_chat(assistant, message=name)

    threads = [threading.Thread(target=chat, args=(name,)) for name in ("one", "two", "three")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in ("one", "two", "three"):
        session = store.session(name)
        assert {one["content"] for one in session.messages() if one["role"] == "user"} == {name}
        assert len(session.effects.list(tool="model")) == 4


def test_agents_are_as_before_when_the_block_is_over(
    cast: Cast, server: ModelServer, store: perdure.Store
) -> None:
    create = autogen.OpenAIWrapper.create
    user, assistant = cast.pair()
    register(charged, assistant, user)
    function = user.function_map["charge"]
    with persist(store.session("s"), user, assistant):
        assert user.function_map["charge"] is not function
        assert autogen.OpenAIWrapper.create is not create
    assert user.function_map["charge"] is function
    assert autogen.OpenAIWrapper.create is create
    assert "send" not in vars(user)
    user.initiate_chat(assistant, message=CHECKLIST)
    assert len(server.requests) == 1
    assert store.session("s").position == 0


def test_the_same_agents_may_be_given_again(cast: Cast, store: perdure.Store) -> None:
    user, assistant = cast.pair()
    for _ in range(2):
        with persist(store.session("s"), user, assistant):
            user.initiate_chat(assistant, message=CHECKLIST)
    assert len(user.chat_messages[assistant]) == 4


def test_code_that_was_run_is_not_run_again(
    cast: Cast, server: ModelServer, store: perdure.Store, tmp_path: Path
) -> None:
    from autogen.coding import LocalCommandLineCodeExecutor

    def chat() -> Any:
        executor = LocalCommandLineCodeExecutor(work_dir=str(tmp_path))
        config = {"executor": executor}
        user, assistant = cast.pair(max_consecutive_auto_reply=1, code_execution_config=config)
        text = "```sh\necho run >> ran\n```"
        assistant.register_reply(
            [autogen.Agent, None],
            lambda recipient, messages, sender, config: (len(messages) == 1, text),
            position=0,
        )
        with persist(store.session("s"), user, assistant):
            return user.initiate_chat(assistant, message=CHECKLIST)

    server.fault(status=500)
    with pytest.raises(Exception, match="500"):
        chat()
    result = chat()
    assert (tmp_path / "ran").read_text() == "run\n"
    assert "exitcode: 0 (execution succeeded)" in result.chat_history[2]["content"]


def test_a_replayed_agent_can_not_chat_in_a_live_session(
    cast: Cast, server: ModelServer, store: perdure.Store
) -> None:
    session = store.session("s")
    user, assistant = cast.pair()

    def agent(_session: perdure.Session) -> None:
        with persist(session, user, assistant):
            user.initiate_chat(assistant, message=CHECKLIST)

    replay = perdure.replay(store.session("other"), agent)
    assert isinstance(replay.error, perdure.ReplayBlockedError)
    assert replay.refused
    assert (session.refresh(), len(server.requests)) == (0, 0)
    agent(session)
    assert len(session) == 2
