"""Blocks that are left: with a chat that failed, one that goes on, and one that has not begun."""

import asyncio
import threading
from typing import Any

import autogen
import pytest

import perdure
from perdure.adapters.autogen import persist
from perdure.testing import ModelServer
from tests.adapters.autogen.conftest import Cast
from tests.adapters.autogen.scripts import register
from tests.adapters.autogen.test_persist import CHARGE, CHECKLIST, REFINE, said


def kept(cast: Cast, session: perdure.Session) -> int:
    """Return how many model calls of a chat are in the record."""
    user, assistant = cast.pair()
    with persist(session, user, assistant):
        user.initiate_chat(assistant, message=CHECKLIST)
    return len(session.effects.list(tool="model"))


def test_a_task_that_begins_when_its_block_has_ended_is_refused(
    cast: Cast, server: ModelServer, store: perdure.Store
) -> None:
    user, assistant = cast.pair()
    create = autogen.OpenAIWrapper.create

    async def begin() -> None:
        with persist(store.session("s"), user, assistant):
            running = asyncio.ensure_future(user.a_initiate_chat(assistant, message=CHECKLIST))
        await running

    with pytest.raises(perdure.UsageError, match="enter it"):
        asyncio.run(begin())
    assert (store.session("s").position, server.requests) == (0, [])
    assert autogen.OpenAIWrapper.create is create
    assert kept(cast, store.session("next")) == 1


def test_a_run_that_is_not_waited_for_does_no_harm_to_the_next(
    cast: Cast, store: perdure.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, assistant = cast.pair()
    if not hasattr(user, "run"):
        pytest.skip("it has no run()")
    session, create = store.session("s"), autogen.OpenAIWrapper.create
    write, writing, left = session.set, threading.Event(), threading.Event()

    def slowly(key: str, value: object) -> int:
        writing.set()
        assert left.wait(60)
        return write(key, value)

    monkeypatch.setattr(session, "set", slowly)  # It says that a chat begins.
    running: list[Any] = []

    def leave() -> None:
        with persist(session, user, assistant):
            running.append(user.run(assistant, message=CHECKLIST, max_turns=1))
            assert writing.wait(60)

    with pytest.raises(perdure.UsageError, match="a chat is still running where"):
        leave()
    left.set()
    running[0].process()
    assert len(session.effects.list(tool="model")) == 1
    assert autogen.OpenAIWrapper.create is create
    assert kept(cast, store.session("next")) == 1


@pytest.mark.parametrize("method", ["run", "run_iter", "a_run", "a_run_iter"])
def test_a_run_that_begins_when_its_block_has_ended_is_refused(
    cast: Cast,
    server: ModelServer,
    store: perdure.Store,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    user, assistant = cast.pair()
    run = getattr(user, method, None)
    if run is None:
        pytest.skip(f"it has no {method}()")
    left, start, session = threading.Event(), threading.Thread.start, store.session("s")

    def late(thread: threading.Thread) -> None:
        begin = thread.run
        monkeypatch.setattr(thread, "run", lambda: (left.wait(60), begin()))
        start(thread)

    responses: list[Any] = []

    async def leave() -> None:
        with persist(session, user, assistant), monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", late)
            response = getattr(user, method)(assistant, message=CHECKLIST, max_turns=1)
            responses.append(await response if method == "a_run" else response)

    async def wait() -> None:
        if not method.endswith("iter"):  # Which begins when somebody asks for its first event.
            with pytest.raises(perdure.UsageError, match=r"a chat of run\(\) has not started, and"):
                await leave()
        else:
            await leave()
        left.set()
        with pytest.raises(perdure.UsageError, match="enter it"):
            await heard(responses[0], method)

    asyncio.run(wait())
    assert responses[0].agents[0] is user
    assert (session.position, server.requests) == (0, [])
    assert getattr(user, method) == run
    assert kept(cast, store.session("next")) == 1


@pytest.mark.parametrize("method", ["run", "run_iter", "a_run_iter"])
def test_a_run_that_somebody_kept_from_a_block_is_refused_after_it(
    cast: Cast, store: perdure.Store, method: str
) -> None:
    user, assistant = cast.pair()
    if not hasattr(user, method):
        pytest.skip(f"it has no {method}()")
    with persist(store.session("s"), user, assistant):
        run = getattr(user, method)
    with pytest.raises(perdure.UsageError, match="enter it"):
        run(assistant, message=CHECKLIST, max_turns=1)


async def heard(response: Any, method: str) -> None:
    """Wait for the end of a chat that a method has begun, in the way that is its own."""
    if method == "run":
        response.process()
    elif method == "run_iter":
        assert [*response]
    elif method == "a_run":
        await response.process()
    else:
        assert [one async for one in response]


@pytest.mark.parametrize("method", ["run", "run_iter", "a_run", "a_run_iter"])
def test_a_run_that_is_waited_for_is_kept(
    cast: Cast, server: ModelServer, store: perdure.Store, method: str
) -> None:
    user, assistant = cast.pair()
    if not hasattr(user, method):
        pytest.skip(f"it has no {method}()")
    session = store.session("s")

    async def run() -> None:
        with persist(session, user, assistant) as chat:
            response = getattr(user, method)(assistant, message=CHECKLIST, max_turns=1)
            await heard(await response if method == "a_run" else response, method)
            assert chat.finished == 1
            with pytest.raises(
                perdure.UsageError, match="pass a recipient, and pass it to persist"
            ):
                await getattr(user, method)(message=CHECKLIST)

    asyncio.run(run())
    assert len(session.effects.list(tool="model")) == len(server.requests) == 1
    assert len(session.messages()) == 2


def test_a_run_of_an_agent_s_own_class_is_left_to_it(cast: Cast, store: perdure.Store) -> None:
    class Desk(autogen.UserProxyAgent):  # type: ignore[misc]
        def run(self, claim: str) -> Any:
            self.claim = claim
            return self.initiate_chat(assistant, message=claim, max_turns=1)

        sequential_run = run

    assistant = cast.assistant()
    desk = Desk("desk", human_input_mode="NEVER", code_execution_config=False)
    with persist(store.session("s"), desk, assistant) as chat:
        assert len(desk.run(CHECKLIST).chat_history) == 2
        assert len(desk.sequential_run(REFINE).chat_history) == 4
        assert chat.finished == 2
    assert desk.claim == REFINE


@pytest.mark.parametrize("method", ["sequential_run", "a_sequential_run"])
def test_runs_in_a_sequence_are_refused_where_they_are_asked_for(
    cast: Cast, server: ModelServer, store: perdure.Store, method: str
) -> None:
    user, assistant = cast.pair()
    if not hasattr(user, method):
        pytest.skip(f"it has no {method}()")
    chats = [{"recipient": assistant, "message": CHECKLIST, "max_turns": 1}]
    with (
        persist(store.session("s"), user, assistant),
        pytest.raises(perdure.UsageError, match=r"call (a_)?initiate_chats\(\)"),
    ):
        getattr(user, method)(chats)
    assert server.requests == []


def test_threads_that_begin_at_once_are_one_chat_at_a_time(
    cast: Cast, store: perdure.Store
) -> None:
    user, assistant = cast.pair()
    session = store.session("s")
    together = threading.Barrier(3)
    errors = []

    def begin(message: str) -> None:
        together.wait(60)
        try:
            user.initiate_chat(assistant, message=message, max_turns=1)
        except perdure.UsageError as error:
            errors.append(str(error))

    with persist(session, user, assistant) as chat:
        threads = [threading.Thread(target=begin, args=(name,)) for name in ("a", "b", "c")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        finished = chat.finished
    assert len(errors) == 3 - finished
    assert all("run one chat at a time per session" in error for error in errors)
    assert [one["role"] for one in session.messages()] == ["user", "assistant"] * finished


def test_agents_of_a_chat_that_failed_may_be_given_again(
    cast: Cast, server: ModelServer, store: perdure.Store
) -> None:
    user, assistant = cast.pair(max_consecutive_auto_reply=1)

    def charge(id: int) -> str:
        assistant.update_system_message("You have charged somebody.")
        return f"charged {id}"

    register(charge, assistant, user)
    session = store.session("s")
    server.fault(status=500, at=2)
    with pytest.raises(Exception, match="500"), persist(session, user, assistant):
        user.initiate_chat(assistant, message=CHARGE)
    assert len(said(user, assistant)) == 3  # Who wants to look at them may.
    with persist(session, user, assistant):
        assert said(user, assistant) == []
        assert assistant.system_message == "You are a clerk."
        assert len(user.initiate_chat(assistant, message=CHARGE).chat_history) == 4
    assert len(server.requests) == 3
    user.send("Something else.", assistant, request_reply=False)
    with (
        pytest.raises(perdure.UsageError, match="a history that is not the session's"),
        persist(session, user, assistant),
    ):
        pass


def test_agents_of_a_group_may_be_given_again(
    cast: Cast, server: ModelServer, store: perdure.Store
) -> None:
    manager = cast.group("planner", "writer", send_introductions=True)
    clerk, session = manager.groupchat.agents[0], store.session("s")
    for prompt in (CHECKLIST, REFINE):
        server.fault(status=500, at=len(server.requests) + 2)
        with pytest.raises(Exception, match="500"), persist(session, manager):
            clerk.initiate_chat(manager, message=prompt)
        with persist(session, manager):
            clerk.initiate_chat(manager, message=prompt)
    assert [one["name"] for one in manager.groupchat.messages] == ["clerk", "planner", "writer"] * 2


def test_instructions_that_chats_exchanged_are_not_names_that_the_code_did(
    cast: Cast, store: perdure.Store
) -> None:
    one, other = cast.assistant("one", "You are right."), cast.assistant("other", "You are wrong.")
    session = store.session("s")
    with persist(session, one, other):
        one.initiate_chat(other, message=CHECKLIST, max_turns=1)
        one.update_system_message("You are wrong.")
        other.update_system_message("You are right.")
    with persist(session, one, other):
        one.initiate_chat(other, message=REFINE, max_turns=1)
    again = cast.assistant("one", "You are right."), cast.assistant("other", "You are wrong.")
    with persist(session, *again):
        assert [agent.system_message for agent in again] == ["You are wrong.", "You are right."]


def test_what_a_group_was_given_is_not_let_go_unseen(cast: Cast, store: perdure.Store) -> None:
    manager = cast.group("planner")
    earlier = {"role": "user", "content": "Earlier.", "name": "clerk"}
    manager.groupchat.messages.append(earlier)
    with (
        pytest.raises(perdure.UsageError, match="a history that is not the session's"),
        persist(store.session("s"), manager),
    ):
        pass
    assert manager.groupchat.messages == [earlier]


def test_a_tool_that_has_agents_talk(cast: Cast, server: ModelServer, store: perdure.Store) -> None:
    """What it has said can not be said again, for a tool is not run again."""

    def begin(name: str, *, given: bool) -> Any:
        user, assistant = cast.pair(max_consecutive_auto_reply=3)
        boss, expert = cast.user("boss"), cast.assistant("expert")

        def charge(id: int) -> str:
            return str(boss.initiate_chat(expert, message=f"And {id}?", max_turns=1).summary)

        register(charge, assistant, user)
        others = [boss, expert] if given else []
        with persist(store.session(name), user, assistant, *others):
            return user.initiate_chat(assistant, message=CHARGE, max_turns=2)

    match = "the tool 'charge' starts a chat of 'boss', who was passed to persist"
    with pytest.raises(perdure.UsageError, match=match):
        begin("s", given=True)
    assert len(server.requests) == 1  # The call of the tool: nobody was asked inside.
    server.fault(status=500, at=len(server.requests) + 3)
    with pytest.raises(Exception, match="500"):
        begin("other", given=False)
    asked = len(server.requests)
    assert len(begin("other", given=False).chat_history) == 4
    assert len(server.requests) == asked + 1
