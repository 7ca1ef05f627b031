"""Chats that die after any record, and the same code run again: nothing differs, nothing is lost.

The ordinary run tries a few places of each chat; `PERDURE_KILLS=all` tries every one.
"""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.autogen.killing import prompts, run, scene, serving, told
from tests.adapters.autogen.scripts import PROMPTS, SCRIPTS

KILLS = os.environ.get("PERDURE_KILLS", "2")

CHATS = ["two_agents", "two_agents_async", "group_of_three", "chosen_speakers", "nested", "several"]
EFFECTS = ["idempotent", "reconcile"]

pytestmark = [pytest.mark.slow, pytest.mark.durability, pytest.mark.timeout(3_600)]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving() as url:
        for name in ("two_agents_async", "chosen_speakers"):  # Children need not import again.
            SCRIPTS[name](scene(tmp_path_factory.mktemp(name), url=url))
        yield url


def kills(counts: dict[str, int], seed: str) -> list[tuple[str, int]]:
    """Return places to die at: some, each kind among them, or all."""
    every = [(what, at) for what, count in sorted(counts.items()) for at in range(1, count + 1)]
    if KILLS == "all":
        return every
    random.Random(seed).shuffle(every)
    first = {what: (what, at) for what, at in every}
    return list(dict.fromkeys([*first.values(), *every]))[: int(KILLS)]


def without_repeats(sent: list[Any]) -> list[Any]:
    """A call that died is made again: with the same prompt, or it would show."""
    return [one for at, one in enumerate(sent) if at == 0 or one != sent[at - 1]]


def whole(name: str, effect: str, url: str, folder: Path) -> tuple[Any, list[Any], dict[str, int]]:
    """Run a chat that nobody kills; return what it told, was asked, and counted."""
    before = len(prompts(url))
    counts = run(name, effect, url, folder)
    wanted = prompts(url)[before:]
    assert len({key for key, _ in scene(folder).ledger()}) == len(scene(folder).ledger()) >= 2
    assert without_repeats(wanted) == wanted
    assert counts["append"] > 20
    return told(folder), wanted, counts


def report(name: str, effect: str, tried: int) -> None:
    print(f"\n{name} with {effect} tools: killed at {tried} places, 0 differences")


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("name", CHATS)
def test_a_killed_chat_goes_on_as_if_nothing_had_happened(
    name: str, effect: str, url: str, tmp_path: Path
) -> None:
    expected, wanted, counts = whole(name, effect, url, tmp_path / "whole")
    ledger = [text for _, text in scene(tmp_path / "whole").ledger()]
    places = kills(counts, f"{name} {effect}")
    for what, at in places:
        folder, before = tmp_path / f"{what}-{at}", len(prompts(url))
        assert run(name, effect, url, folder, what=what, at=at) is None
        run(name, effect, url, folder)
        assert told(folder) == expected, (what, at)
        assert without_repeats(prompts(url)[before:]) == wanted, (what, at)
        done = scene(folder).ledger()
        assert len({key for key, _ in done}) == len(done), (what, at)
        assert sorted(text for _, text in done) == sorted(ledger), (what, at)
    report(name, effect, len(places))


@pytest.mark.parametrize("name", CHATS)
def test_an_unsafe_tool_is_not_run_twice_and_the_model_is_told(
    name: str, url: str, tmp_path: Path
) -> None:
    expected, wanted, counts = whole(name, "unsafe", url, tmp_path / "whole")
    places, unknown = kills(counts, f"{name} unsafe"), 0
    for what, at in places:
        folder, before = tmp_path / f"{what}-{at}", len(prompts(url))
        assert run(name, "unsafe", url, folder, what=what, at=at) is None
        run(name, "unsafe", url, folder)
        done = scene(folder).ledger()
        assert len({key for key, _ in done}) == len(done), (what, at)
        found = told(folder)
        assert found["interrupted"] == []
        if "UNKNOWN: The process died" in str(found["messages"]):
            unknown += 1
            said = [one["content"] for one in found["messages"]]
            assert [text for text in said if text in PROMPTS] == PROMPTS
        else:
            assert found == expected, (what, at)
            assert without_repeats(prompts(url)[before:]) == wanted, (what, at)
    assert unknown >= sum(what == "tool" for what, _ in places)
    report(name, "unsafe", len(places))


@pytest.mark.parametrize("seed", range(2))
def test_a_chat_that_is_killed_again_and_again_comes_to_its_end(
    seed: int, url: str, tmp_path: Path
) -> None:
    expected, wanted, _ = whole("nested", "idempotent", url, tmp_path / "whole")
    chance, before, folder = random.Random(seed), len(prompts(url)), tmp_path / "s"
    for _ in range(8):
        what, at = chance.choice(["append", "append", "tool"]), chance.randint(1, 12)
        if run("nested", "idempotent", url, folder, what=what, at=at) is not None:
            break
    run("nested", "idempotent", url, folder)
    assert told(folder) == expected
    assert without_repeats(prompts(url)[before:]) == wanted
    assert len({key for key, _ in scene(folder).ledger()}) == len(scene(folder).ledger())
