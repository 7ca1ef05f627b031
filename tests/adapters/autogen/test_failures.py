"""Model calls that fail without ending their chat: they fail again after a crash."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import autogen
import openai
import pytest

import perdure
from perdure.adapters.autogen import persist
from perdure.adapters.autogen.model_calls import RecordedModelError
from perdure.backends.memory import MemoryBackend
from perdure.testing import Flaky, ModelServer
from tests.adapters.autogen.conftest import Cast
from tests.adapters.autogen.test_persist import CHECKLIST

pytestmark = pytest.mark.filterwarnings("ignore:Cannot extract summary")

SUMMED_UP = {"summary_method": "reflection_with_llm", "max_turns": 1}


def queue(cast: Cast, session: perdure.Session, *, in_tasks: bool) -> Any:
    """Have three chats, the first two of which a model sums up for the next."""
    agents = [cast.user(), *(cast.assistant(name) for name in ("planner", "writer", "editor"))]
    chats = [
        {"chat_id": id, "recipient": one, "message": f"{one.name}!", **SUMMED_UP}
        for id, one in enumerate(agents[1:])
    ]
    chats[2]["summary_method"] = "last_msg"
    with persist(session, *agents):
        if not in_tasks:
            results = agents[0].initiate_chats(chats)
        else:
            chats[1]["prerequisites"], chats[2]["prerequisites"] = [0], [1]
            found = asyncio.run(agents[0].a_initiate_chats(chats))
            results = [found[at] for at in range(3)]
    return [(one.summary, one.chat_history) for one in results]


@pytest.mark.parametrize("in_tasks", [False, True])
def test_a_summary_that_failed_is_not_another_after_another_failure(
    cast: Cast, server: ModelServer, store: perdure.Store, *, in_tasks: bool
) -> None:
    server.fault(status=400, at=2)
    whole = queue(cast, store.session("whole"), in_tasks=in_tasks)
    assert whole[0][0] == ""
    asked = [one.body["messages"] for one in server.requests]
    assert len(asked) == 5
    server.fault(status=400, at=5 + 2)
    server.fault(status=500, at=5 + 5)  # The answer of the third chat.
    with pytest.raises(Exception, match="500"):
        queue(cast, store.session("s"), in_tasks=in_tasks)
    assert queue(cast, store.session("s"), in_tasks=in_tasks) == whole
    assert [one.body["messages"] for one in server.requests][5:] == [*asked, asked[-1]]


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_failure_that_a_reply_function_passes_over_is_the_same_again(
    cast: Cast, server: ModelServer, store: perdure.Store, rounds: int
) -> None:
    """In a round the model is asked twice with the same words: it fails, and then it answers."""
    caught: list[Any] = []

    def chat(name: str) -> Any:
        user, assistant = cast.pair(max_consecutive_auto_reply=1, default_auto_reply="Go on.")

        def ask(recipient: Any, messages: Any, sender: Any) -> Any:
            try:
                return recipient.generate_oai_reply(messages, sender)
            except openai.RateLimitError as error:
                caught.append((str(error), error.status_code, error.message))
                return recipient.generate_oai_reply(messages, sender)

        def insist(recipient: Any, messages: Any, sender: Any, config: Any) -> Any:
            return [ask(recipient, messages, sender) for _ in range(rounds)][-1]

        assistant.register_reply([autogen.Agent, None], insist, position=0)
        with persist(store.session(name), user, assistant):
            return user.initiate_chat(assistant, message=CHECKLIST).chat_history

    def fail_each_round() -> None:
        for number in range(rounds):
            server.fault(status=429, at=len(server.requests) + 1 + 2 * number)

    fail_each_round()
    whole = chat("whole")
    before, first = len(server.requests), 2 * rounds
    fail_each_round()
    server.fault(status=500, at=before + first + 1)
    with pytest.raises(openai.InternalServerError):
        chat("s")
    assert chat("s") == whole
    assert len(server.requests) - before == first + 1 + rounds
    assert len(caught) == 3 * rounds
    assert len({*caught}) == 1


def too_long() -> Exception:
    response: Any = SimpleNamespace(request=None, status_code=400, headers={})
    body = {"message": "Too long.", "code": "context_length_exceeded"}
    return openai.BadRequestError("Error code: 400", response=response, body=body)


def timed_out() -> Exception:
    request: Any = None
    return openai.APITimeoutError(request=request)


class Odd(Exception):  # noqa: N818 - it may be anybody's
    def __init__(self, words: str) -> None:
        self.words = words

    def __str__(self) -> str:
        return self.words


@pytest.mark.parametrize(
    ("fail", "caught", "again"),
    [
        (too_long, openai.BadRequestError, openai.BadRequestError),
        (timed_out, TimeoutError, TimeoutError),  # As the framework calls it.
        (lambda: ValueError("No."), ValueError, ValueError),
        (lambda: Odd("That."), Odd, RecordedModelError),
    ],
)
def test_a_failure_from_the_record_is_what_it_was(
    cast: Cast,
    server: ModelServer,
    store: perdure.Store,
    monkeypatch: pytest.MonkeyPatch,
    fail: Callable[[], Exception],
    caught: type[Exception],
    again: type[Exception],
) -> None:
    from autogen.oai.client import OpenAIClient

    create, failures, seen = OpenAIClient.create, [fail()], []

    def answered(client: Any, params: Any) -> Any:
        if failures:
            raise failures.pop()
        return create(client, params)

    def chat() -> Any:
        user, assistant = cast.pair(max_consecutive_auto_reply=1, default_auto_reply="Go on.")

        def insist(recipient: Any, messages: Any, sender: Any, config: Any) -> Any:
            try:
                return recipient.generate_oai_reply(messages, sender)
            except (caught, again) as error:
                seen.append((str(error), getattr(error, "code", None), type(error)))
                return True, f"Nobody says: {error}"

        assistant.register_reply([autogen.Agent, None], insist, position=0)
        with persist(store.session("s"), user, assistant):
            return user.initiate_chat(assistant, message=CHECKLIST).chat_history

    monkeypatch.setattr(OpenAIClient, "create", answered)
    server.fault(status=500, at=1)
    with pytest.raises(openai.InternalServerError):
        chat()
    assert len(chat()) == 4
    assert [kind for _, _, kind in seen] == [caught, again]
    assert seen[0][:2] == seen[1][:2]


def test_a_failure_in_a_thread_of_async_code_is_that_of_who_waits_for_it(
    cast: Cast, server: ModelServer, store: perdure.Store
) -> None:
    def chat() -> Any:
        boss, assistant = cast.assistant("boss"), cast.assistant()

        async def insist(recipient: Any, messages: Any, sender: Any, config: Any) -> Any:
            try:
                return await recipient.a_generate_oai_reply(messages, sender)
            except openai.RateLimitError:
                return True, "Nobody answers."

        assistant.register_reply(
            [autogen.Agent, None], insist, position=0, ignore_async_in_sync_chat=True
        )
        with persist(store.session("s"), boss, assistant):
            begun = boss.a_initiate_chat(assistant, message=CHECKLIST, max_turns=2)
            return asyncio.run(begun).chat_history

    server.fault(status=429, at=1)
    server.fault(status=500, at=2)
    with pytest.raises(openai.InternalServerError):
        chat()
    assert chat()[1]["content"] == "Nobody answers."
    assert len(server.requests) == 4


def test_a_failure_that_ended_a_chat_is_asked_again_however_often(
    cast: Cast, server: ModelServer, store: perdure.Store
) -> None:
    def chat() -> Any:
        user, assistant = cast.pair(max_consecutive_auto_reply=1, default_auto_reply="Go on.")
        with persist(store.session("s"), user, assistant):
            return user.initiate_chat(assistant, message=CHECKLIST).chat_history

    for at in (1, 2, 4):  # The first request twice, and the second.
        server.fault(status=429, at=at)
        with pytest.raises(openai.RateLimitError):
            chat()
    assert len(chat()) == 4
    assert len(server.requests) == 5
    assert not store.session("s").effects.list(tool="model_failure")


def test_a_store_that_fails_while_a_chat_is_summed_up_stops_it(
    cast: Cast, server: ModelServer
) -> None:
    """The framework makes an empty summary of any error; the chat must not end with that."""
    away = [True]

    def sum_up(sender: Any, recipient: Any, _: Any) -> str:
        try:
            return str(recipient.generate_oai_reply([{"role": "user", "content": "Sum up."}])[1])
        except Exception:  # noqa: BLE001 - as the framework does
            away[0] = False
            return ""

    def fail(_: int) -> bool:
        return away[0] and len(server.requests) == 2  # The summary has come, and is not stored.

    def chat() -> Any:
        user, assistant = cast.pair()
        with persist(store.session("s"), user, assistant) as kept:
            assert kept.finished == 0
            return user.initiate_chat(assistant, message=CHECKLIST, summary_method=sum_up).summary

    with perdure.open(Flaky(MemoryBackend(), fail=fail)) as store:
        with pytest.raises(perdure.UnavailableError):
            chat()
        assert not away[0]
        assert chat().startswith("digest")
    assert len(server.requests) == 3  # What was not stored is asked again.


def test_a_store_that_fails_while_a_failure_is_passed_over_stops_the_chat(
    cast: Cast, server: ModelServer
) -> None:
    """Whoever takes the store's error for one of the model may not go on without a record."""
    away = [False]

    def chat() -> Any:
        user, assistant = cast.pair(max_consecutive_auto_reply=1, default_auto_reply="Go on.")

        def insist(recipient: Any, messages: Any, sender: Any, config: Any) -> Any:
            try:
                return recipient.generate_oai_reply(messages, sender)
            except openai.RateLimitError:
                away[0] = True
            try:
                return recipient.generate_oai_reply(messages, sender)
            except Exception:  # noqa: BLE001 - as code does that knows no store
                away[0] = False
                return True, "Nobody answers."

        assistant.register_reply([autogen.Agent, None], insist, position=0)
        with persist(store.session("s"), user, assistant):
            return user.initiate_chat(assistant, message=CHECKLIST).chat_history

    with perdure.open(Flaky(MemoryBackend(), fail=lambda _: away[0])) as store:
        server.fault(status=429, at=1)
        with pytest.raises(perdure.UnavailableError):
            chat()
        assert len(server.requests) == 1
        assert chat()[1]["content"].startswith("digest")
