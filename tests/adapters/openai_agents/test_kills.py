"""A process that dies anywhere, and others that run the same program: nothing lost or doubled.

A process dies after every record that it stored, before and after every request to the model and
every call of a tool, and at every event of a stream. The next one runs the same program to its end,
and a third one must get the same answers and change nothing.
"""

import asyncio
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from agents import SQLiteSession

import perdure
from perdure.formats.tool_calls import INTERRUPTED_NOTICE
from tests.adapters.openai.killing import child, prompts, serving
from tests.adapters.openai.scripts import Hooks
from tests.adapters.openai_agents import scripts
from tests.adapters.openai_agents.agents_of import Ledger

pytestmark = [pytest.mark.durability, pytest.mark.timeout(3_600)]  # With all places.

# How many of the places where a program can die are tried; "all" for each of them.
KILLS = os.environ.get("PERDURE_KILLS", "1")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving() as url:
        # Children need not import again what this process has imported.
        scripts.run("streamed:unsafe", url, tmp_path_factory.mktemp("warm") / "a.db", Hooks())
        yield url


class Seen(NamedTuple):
    """What a session holds, and what was answered and charged."""

    position: int
    digests: list[str]
    messages: list[dict[str, Any]]
    tools: list[Any]
    answers: list[str]
    ledger: list[Any]


def look(path: Path, *, is_open: bool = False) -> Seen:
    with perdure.open(path) as store:
        session = store.session(scripts.SESSION)
        assert is_open or session.interrupted == ()
        session.verify()
        answers = path.with_suffix(".answers")
        return Seen(
            session.position,
            [record.digest for record in session.records()],
            list(session.messages()),
            [effect for effect in session.effects.list() if effect.kind == "tool"],
            json.loads(answers.read_text("utf-8")) if answers.exists() else [],
            Ledger(path.with_suffix(".ledger")).lines,
        )


def kills(counts: dict[str, int], seed: str) -> list[tuple[str, int]]:
    """Return places to die at: some of each kind, or all."""
    every = [(what, at) for what, count in sorted(counts.items()) for at in range(1, count + 1)]
    if KILLS == "all":
        print(f"{seed}: killed at {len(every)} places")
        return every
    random.Random(seed).shuffle(every)
    return every[: int(KILLS)]


def run_killed(form: str, url: str, path: Path, what: str, at: int) -> tuple[Seen, list[Any]]:
    """Run a program that dies at a place, and then twice to its end; return what is left."""
    asked = len(prompts(url))
    assert child(scripts.run, form, url, path, what=what, at=at) is None
    before = look(path, is_open=True)
    child(scripts.run, form, url, path)
    second, sent = look(path), prompts(url)[asked:]
    assert second.digests[: before.position] == before.digests, (what, at)
    child(scripts.run, form, url, path)
    assert look(path) == second, (what, at)
    assert prompts(url)[asked:] == sent, (what, at)
    return second, sent


def without_repeats(sent: list[Any]) -> list[Any]:
    """A request that died is made again: with the same prompt, or it would show."""
    return [one for at, one in enumerate(sent) if one not in sent[:at]]


@pytest.mark.parametrize("form", scripts.FORMS)
def test_an_unsafe_tool_takes_effect_once_or_is_unknown(
    form: str, url: str, tmp_path: Path
) -> None:
    asked = len(prompts(url))
    counts = child(scripts.run, f"{form}:unsafe", url, tmp_path / "whole.db")
    whole, wanted = look(tmp_path / "whole.db"), prompts(url)[asked:]
    assert {"append", "request", "response", "sending", "received"} <= counts.keys()
    assert len(whole.ledger) == counts["received"] >= 2
    for what, at in kills(counts, f"{form}:unsafe"):
        path = tmp_path / f"{what}-{at}.db"
        found, sent = run_killed(f"{form}:unsafe", url, path, what, at)
        keys = [line["key"] for line in found.ledger]
        assert len(keys) == len({*keys}), (what, at)
        unknown = [effect for effect in found.tools if effect.state == "unknown"]
        charges = [effect for effect in found.tools if effect.tool == "charge"]
        assert {effect.key for effect in charges} - {*keys} <= {one.key for one in unknown}
        if what in ("sending", "received"):
            assert 1 <= len(unknown) <= 2, (what, at)  # Two calls can be under way.
        told = [item for item in found.messages if INTERRUPTED_NOTICE in str(item.get("output"))]
        assert form == "nested" or len(told) == len(unknown), (what, at)
        if not unknown:
            assert without_repeats(sent) == without_repeats(wanted), (what, at)
            assert found.answers == whole.answers, (what, at)
            assert sorted(map(str, found.messages)) == sorted(map(str, whole.messages)), (what, at)


@pytest.mark.parametrize("policy", ["idempotent", "reconcile"])
@pytest.mark.parametrize("form", scripts.FORMS if KILLS == "all" else ["streamed"])
def test_a_tool_that_can_be_repeated_or_asked_about_takes_effect_exactly_once(
    form: str, policy: str, url: str, tmp_path: Path
) -> None:
    counts = child(scripts.run, f"{form}:{policy}", url, tmp_path / "whole.db")
    whole = look(tmp_path / "whole.db")
    for what, at in kills(counts, f"{form}:{policy}"):
        found, _ = run_killed(f"{form}:{policy}", url, tmp_path / f"{what}-{at}.db", what, at)
        assert sorted(line["amount"] for line in found.ledger) == sorted(
            line["amount"] for line in whole.ledger
        ), (what, at)
        assert found.answers == whole.answers, (what, at)


class Tally:
    """What went wrong at how many places, for the table in the documentation."""

    def __init__(self) -> None:
        self.places = self.charged_twice = self.paid_twice = self.asked_twice = 0

    def count(self, path: Path, what: str, requests: int, items: list[Any], usual: int) -> None:
        """Look at what two processes left behind, of which the first one was killed."""
        amounts = Ledger(path.with_suffix(".ledger")).amounts
        texts = [str(item["content"]) for item in items if item.get("role") == "user"]
        # The answer to a request that was under way may have been lost with the process.
        lost = what in ("request", "response", "chunk")
        self.places += 1
        self.charged_twice += len(amounts) > len({*amounts})
        self.paid_twice += requests > usual + lost
        self.asked_twice += len(texts) > len({*texts})

    def __str__(self) -> str:
        return (
            f"{self.places} places: charged twice at {self.charged_twice}, "
            f"answers paid for twice at {self.paid_twice}, question twice at {self.asked_twice}"
        )


def sdk_items(path: Path) -> list[Any]:
    session = SQLiteSession(scripts.SESSION, path)
    try:
        items: list[Any] = asyncio.run(session.get_items())
        return items
    finally:
        session.close()


@pytest.mark.parametrize("form", ["plain", "streamed"] if KILLS == "all" else ["plain"])
def test_the_sdk_alone_charges_asks_and_pays_twice(form: str, url: str, tmp_path: Path) -> None:
    """The same program on the SDK's SQLiteSession, and on perdure: what perdure is for."""
    sides: dict[str, Any] = {"sdk": scripts.run_plain, "perdure": scripts.run}
    tallies = {}
    for side, script in sides.items():
        whole = tmp_path / f"{side}-whole.db"
        before = len(prompts(url))
        counts = child(script, f"{form}:unsafe", url, whole)
        usual = len(prompts(url)) - before
        tally = tallies[side] = Tally()
        places = [("received", 1)] if KILLS != "all" else kills(counts, f"{form}:{side}")
        for what, at in places:
            path = tmp_path / f"{side}-{what}-{at}.db"
            before = len(prompts(url))
            assert child(script, f"{form}:unsafe", url, path, what=what, at=at) is None
            child(script, f"{form}:unsafe", url, path)
            items = sdk_items(path) if side == "sdk" else look(path).messages
            tally.count(path, what, len(prompts(url)) - before, items, usual)
        print(f"{form}, {side}: {tally}")
    sdk, own = tallies["sdk"], tallies["perdure"]
    assert min(sdk.charged_twice, sdk.paid_twice, sdk.asked_twice) > 0
    assert max(own.charged_twice, own.paid_twice, own.asked_twice) == 0
