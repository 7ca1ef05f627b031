"""A model's answer is paid for once."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.errors import EffectError, UsageError
from perdure.journal.records import EffectIntent, EffectOutcome


class Killed(BaseException):
    """The process dies here: nothing is recorded any more."""


class Provider:
    """A model that counts what it is paid for."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def answer(self, **request: Any) -> dict[str, Any]:
        self.asked.append(request)
        return {"text": f"answer {len(self.asked)}", "usage": {"total_tokens": 12}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agents.db"


@pytest.fixture
def provider() -> Provider:
    return Provider()


def test_a_request_is_recorded_by_its_digest_and_the_answer_whole(
    path: Path, provider: Provider
) -> None:
    session = perdure.open(path).session("s")
    ask = session.model(provider.answer, name="gpt", version="1", actor="clerk")
    secret = "x" * 5_000
    with session.turn("Hi.") as turn:
        before = session.position
        assert ask(messages=[{"role": "user", "content": secret}])["text"] == "answer 1"
        assert session.position == before + 2
    (effect,) = session.effects.list(kind="model")
    assert (effect.tool, effect.kind, effect.state) == ("gpt", "model", "succeeded")
    assert (effect.turn, effect.version, effect.policy) == (turn.id, "1", "read_only")
    assert effect.arguments is None
    assert effect.result == {"text": "answer 1", "usage": {"total_tokens": 12}}
    assert effect.usage == {"total_tokens": 12}
    assert session.effects.list(kind="tool") == []
    intents = [one.content for one in session.records() if isinstance(one.content, EffectIntent)]
    assert [one.call_type for one in intents] == ["model"]
    assert secret not in str(intents)
    with pytest.raises(UsageError, match="no effects of kind 'word'"):
        session.effects.list(kind="word")  # type: ignore[arg-type]
    session.verify()


def test_a_recorded_answer_is_served_and_other_requests_are_made(
    path: Path, provider: Provider
) -> None:
    first = perdure.open(path).session("s")
    first.turn("Hi.", id="turn-1").__enter__()
    ask = first.model(provider.answer)
    answers = [ask(n=1), ask(n=1), ask(n=2)]
    # The process is gone; another one runs the same code.
    again = perdure.open(path).session("s")
    with again.turn("Hi.", id="turn-1"):
        ask = again.model(provider.answer)
        assert [ask(n=1), ask(n=1), ask(n=2)] == answers
        assert len(provider.asked) == 3
        assert ask(n=3)["text"] == "answer 4"
    with again.turn("Hi again."):
        assert ask(n=1)["text"] == "answer 5"


def test_a_request_in_flight_at_death_is_made_again(path: Path, provider: Provider) -> None:
    first = perdure.open(path).session("s")

    def dying(**request: Any) -> None:
        provider.answer(**request)
        first._handle.write = _dead  # type: ignore[method-assign]
        raise Killed

    with pytest.raises(Killed), first.turn("Hi.", id="turn-1"):
        first.model(dying, name="gpt")(n=1)
    again = perdure.open(path).session("s")
    with again.turn("Hi.", id="turn-1"):
        assert again.model(provider.answer, name="gpt")(n=1)["text"] == "answer 2"
    assert [one.state for one in again.effects.list()] == ["repeated", "succeeded"]
    assert "unknown-effect" not in again.labels


def _dead(plan: object) -> Any:
    raise Killed


def test_a_failure_is_recorded_and_the_request_made_again_by_who_takes_over(
    path: Path, provider: Provider
) -> None:
    first = perdure.open(path).session("s")

    def busy(**request: Any) -> None:
        raise TimeoutError("busy")

    first.turn("Hi.", id="turn-1").__enter__()
    with pytest.raises(TimeoutError):
        first.model(busy, name="gpt")(n=1)
    (effect,) = first.effects.list()
    assert (effect.state, effect.error, effect.reason) == ("failed", "TimeoutError", "busy")
    again = perdure.open(path).session("s")
    with again.turn("Hi.", id="turn-1"):
        assert again.model(provider.answer, name="gpt")(n=1)["text"] == "answer 1"
    assert [one.state for one in again.effects.list()] == ["failed", "succeeded"]


def test_a_tool_that_failed_is_not_called_again_by_who_takes_over(path: Path) -> None:
    first = perdure.open(path).session("s")
    first.turn("Hi.", id="turn-1").__enter__()
    with pytest.raises(ZeroDivisionError):
        first.tool(lambda: 1 // 0, name="divide", effect="read_only")()
    again = perdure.open(path).session("s")
    divide = again.tool(lambda: 1, name="divide", effect="read_only")
    with again.turn("Hi.", id="turn-1"), pytest.raises(EffectError, match="ZeroDivisionError"):
        divide()


def test_what_is_digested_can_be_chosen(path: Path, provider: Provider) -> None:
    first = perdure.open(path).session("s")
    first.turn("Hi.", id="turn-1").__enter__()
    ask = first.model(provider.answer, digest_of=lambda given: given["request"]["n"])
    answer = ask(n=1, tool=object())
    again = perdure.open(path).session("s")
    with again.turn("Hi.", id="turn-1"):
        ask = again.model(provider.answer, digest_of=lambda given: given["request"]["n"])
        assert ask(n=1, tool=object()) == answer
    assert len(provider.asked) == 1


def test_an_answer_that_nobody_recorded_leaves_no_doubt_when_its_turn_is_given_up(
    path: Path,
) -> None:
    first = perdure.open(path).session("s")
    first.turn("Hi.", id="turn-1").__enter__()
    blocked = first.model(lambda: first._handle.__setattr__("write", _dead), name="gpt")
    with pytest.raises(Killed):
        blocked()
    again = perdure.open(path).session("s")
    again.interrupted[0].abandon("no more")
    (effect,) = again.effects.list()
    assert (effect.state, effect.error) == ("failed", "Unanswered")
    assert again.effects.unknown() == []


def test_nonsense_is_refused(path: Path, provider: Provider) -> None:
    session = perdure.open(path).session("s")
    with pytest.raises(UsageError, match="a model must be a function"):
        session.model("gpt")  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="outside of a turn"):
        session.model(provider.answer)(n=1)
    with session.turn("Hi."):
        with pytest.raises(UsageError, match="cannot be stored"):
            session.model(provider.answer)(n=object())
        session.model(object, name="gpt")()
    assert provider.asked == []
    settled = [one.content for one in session.records() if isinstance(one.content, EffectOutcome)]
    assert [(one.state, one.unstored) for one in settled] == [("succeeded", "object")]


def test_async_models_are_the_same(path: Path, provider: Provider) -> None:
    async def answer(**request: Any) -> dict[str, Any]:
        await asyncio.sleep(0)
        return provider.answer(**request)

    async def work() -> None:
        async with perdure.open_async(path) as store:
            session = await store.session("s")
            turn = session.turn("Hi.", id="turn-1")
            await turn.__aenter__()
            ask = session.model(answer)
            answers = [await ask(n=1), await ask(n=1)]
            again = await store.session("s")
            async with again.turn("Hi.", id="turn-1"):
                ask = again.model(answer)
                assert [await ask(n=1), await ask(n=1)] == answers
                plain = again.model(provider.answer, name="plain")
                assert (await plain(n=1))["text"] == "answer 3"
            found = await again.effects.list(kind="model")
            assert [one.usage["total_tokens"] for one in found] == [12, 12, 12]

    asyncio.run(work())
    assert len(provider.asked) == 3
