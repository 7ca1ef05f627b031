"""People who are asked, tools of any kind, and answers that code reads for itself."""

import functools
from collections.abc import Callable
from typing import Any

import autogen
import pytest

import perdure
from perdure.adapters.autogen import persist
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.testing import ModelServer
from tests.adapters.autogen.conftest import Cast

CHECKLIST = "Draft a claims escalation checklist."
CHARGE = 'Do it. CALL charge {"id": 17}'


@pytest.mark.parametrize("error", [KeyboardInterrupt, EOFError, RuntimeError])
def test_who_was_asked_and_did_not_answer_is_asked_again(
    cast: Cast, store: perdure.Store, error: type[BaseException]
) -> None:
    asked: list[str] = []

    def chat(*words: str) -> Any:
        left = iter(words)
        user, assistant = cast.pair(max_consecutive_auto_reply=None, human_input_mode="ALWAYS")

        def ask(prompt: str, **_: Any) -> str:
            asked.append(prompt)
            word = next(left)
            if word == "leave":
                raise error("stop")
            return word

        user.get_human_input = ask
        with persist(store.session("s"), user, assistant):
            return user.initiate_chat(assistant, message=CHECKLIST)

    for words in (["And for cars?", "leave"], ["leave"]):
        with pytest.raises(error):
            chat(*words)
    result = chat("And for bikes?", "exit")
    assert result.human_input == ["And for cars?", "And for bikes?", "exit"]
    assert len(asked) == 5


class Charge:
    """A tool that is an object."""

    def __init__(self, charged: list[int]) -> None:
        self._charged = charged

    def __call__(self, id: int) -> str:
        self._charged.append(id)
        return f"charged {id} EUR"


def in_currency(charged: list[int], id: int, currency: str) -> str:
    charged.append(id)
    return f"charged {id} {currency}"


@pytest.mark.parametrize(
    "tool",
    [Charge, lambda charged: functools.partial(in_currency, charged, currency="EUR")],
    ids=["object", "partial"],
)
def test_a_tool_may_be_anything_that_can_be_called(
    cast: Cast, store: perdure.Store, tool: Callable[[list[int]], Callable[..., str]]
) -> None:
    charged: list[int] = []
    user, assistant = cast.pair(max_consecutive_auto_reply=1)
    function = {"name": "charge", "parameters": {"type": "object", "properties": {}}}
    assistant.llm_config["tools"] = [{"type": "function", "function": function}]
    assistant.client = autogen.OpenAIWrapper(**assistant.llm_config)
    user.register_function({"charge": tool(charged)})
    session = store.session("s")
    with persist(session, user, assistant):
        user.initiate_chat(assistant, message=CHARGE)
    assert charged == [17]
    (effect,) = session.effects.list(tool="charge")
    assert (effect.state, effect.result) == ("succeeded", "charged 17 EUR")


def test_code_that_reads_an_answer_finds_in_a_recorded_one_what_it_had(
    cast: Cast, server: ModelServer, store: perdure.Store
) -> None:
    read: list[tuple[Any, ...]] = []

    def judge(recipient: Any, messages: Any, **_: Any) -> tuple[bool, None]:
        asked = {"role": "user", "content": f"Is this right? {messages[-1]['content']}"}
        found = recipient.client.create(messages=[asked])
        choice = found.choices[0]
        more = (found.usage.total_tokens, found.id, found.created, found.model)
        said = (choice.finish_reason, choice.message.content, choice.message.role)
        read.append((*more, *said, recipient.client.extract_text_or_completion_object(found)))
        return False, None

    def chat() -> Any:
        user, assistant = cast.pair()
        assistant.register_reply([autogen.Agent, None], judge, position=0)
        with persist(store.session("s"), user, assistant):
            return user.initiate_chat(assistant, message=CHECKLIST)

    server.fault(status=500, at=len(server.requests) + 2)
    with pytest.raises(Exception, match="500"):
        chat()
    chat()
    assert len(read) == 2
    assert read[0] == read[1]
    assert len(server.requests) == 3


def test_what_is_sent_is_what_was_recorded_whatever_happens_to_the_messages(
    cast: Cast, server: ModelServer, store: perdure.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [{"role": "user", "content": "Is this right?"}]
    append = SqliteBackend.append

    def meddling(self: Any, given: Any) -> Any:
        messages[0]["content"] = "Is this wrong?"
        return append(self, given)

    def judge(recipient: Any, **_: Any) -> tuple[bool, None]:
        messages[0]["content"] = "Is this right?"
        monkeypatch.setattr(SqliteBackend, "append", meddling)
        recipient.client.create(messages=messages)
        monkeypatch.undo()
        return False, None

    user, assistant = cast.pair()
    assistant.register_reply([autogen.Agent, None], judge, position=0)
    with persist(store.session("s"), user, assistant):
        user.initiate_chat(assistant, message=CHECKLIST)
    assert messages[0]["content"] == "Is this wrong?"
    assert server.requests[0].body["messages"][-1]["content"] == "Is this right?"


def test_a_user_s_own_methods_of_an_agent_are_put_back(cast: Cast, store: perdure.Store) -> None:
    user, assistant = cast.pair(max_consecutive_auto_reply=None, human_input_mode="ALWAYS")
    user.get_human_input = lambda *_, **__: "exit"
    own = user.get_human_input
    for _ in range(2):
        with persist(store.session("s"), user, assistant):
            assert user.get_human_input is not own
            assert user.initiate_chat(assistant, message=CHECKLIST).human_input[-1] == "exit"
        assert vars(user)["get_human_input"] is own
        assert "send" not in vars(user)
