"""A process that dies anywhere, and another that runs the same script: nothing lost or doubled.

Every prompt that the server was sent is compared with those of a run that nobody interrupted.
"""

import os
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.openai import scripts
from tests.adapters.openai.killing import Script, child, messages, prompts, serving

pytestmark = pytest.mark.durability

# How many of the places where a script can die are tried; "all" for each of them.
KILLS = os.environ.get("PERDURE_KILLS", "2")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving() as url:
        yield url


def cases() -> Iterator[Any]:
    for form in scripts.FORMS:
        yield pytest.param(scripts.run, form, id=f"wrapped-{form}")
    yield pytest.param(partial(scripts.run, every=0), "streamed", id="wrapped-every-chunk")
    yield pytest.param(partial(scripts.run, every=0), "responses_helped", id="wrapped-every-event")
    for form in ("plain", "parsed", "responses_helped"):
        yield pytest.param(scripts.run_by_id, form, id=f"by-id-{form}")
    for form in ("plain", "streamed"):
        yield pytest.param(scripts.run_async, form, id=f"async-{form}")
        yield pytest.param(scripts.run_explicit, form, id=f"explicit-{form}")


def without_repeats(sent: list[Any]) -> list[Any]:
    """A call that died is made again: with the same prompt, or it would show."""
    return [one for at, one in enumerate(sent) if at == 0 or one != sent[at - 1]]


def kills(counts: dict[str, int], seed: str) -> list[tuple[str, int]]:
    """Return places to die at: some of each kind, or all."""
    every = [(what, at) for what, count in sorted(counts.items()) for at in range(1, count + 1)]
    if KILLS == "all":
        return every
    random.Random(seed).shuffle(every)
    first = {what: (what, at) for what, at in every}
    return list(dict.fromkeys([*first.values(), *every]))[: int(KILLS)]


@pytest.mark.parametrize(("script", "form"), [*cases()])
def test_a_killed_script_that_is_run_again_says_and_hears_the_same(
    script: Script, form: str, url: str, tmp_path: Path
) -> None:
    script(form, url, tmp_path / "warm.db", scripts.Hooks())  # Children need not import again.
    before = len(prompts(url))
    counts = child(script, form, url, tmp_path / "whole.db")
    wanted, said = prompts(url)[before:], messages(tmp_path / "whole.db")
    assert [one["content"] for one in said if one.get("role") == "user"] == scripts.INPUTS
    assert len(wanted) == 4
    assert {"append", "sending", "received"} <= counts.keys()
    for what, at in kills(counts, form):
        path = tmp_path / f"{what}-{at}.db"
        before = len(prompts(url))
        assert child(script, form, url, path, what=what, at=at) is None
        child(script, form, url, path)
        assert without_repeats(prompts(url)[before:]) == wanted, (what, at)
        assert messages(path) == said, (what, at)


@pytest.mark.parametrize("seed", range(2))
def test_a_script_that_is_killed_again_and_again_comes_to_its_end(
    seed: int, url: str, tmp_path: Path
) -> None:
    before = len(prompts(url))
    child(scripts.run, "streamed", url, tmp_path / "whole.db")
    wanted, said = prompts(url)[before:], messages(tmp_path / "whole.db")
    chance, before = random.Random(seed), len(prompts(url))
    for _ in range(12):
        what = chance.choice(["append", "sending", "received", "chunk"])
        at = chance.randint(1, 3 if what != "chunk" else 30)
        if child(scripts.run, "streamed", url, tmp_path / "s.db", what=what, at=at) is not None:
            break
    child(scripts.run, "streamed", url, tmp_path / "s.db")
    assert without_repeats(prompts(url)[before:]) == wanted
    assert messages(tmp_path / "s.db") == said
