"""A process that dies anywhere, and another that runs the same program: nothing lost or doubled.

Every prompt that the server was sent is compared with those of a run that nobody interrupted.
"""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.adapters.agentchat.saved_runs import STATE_KEY
from perdure.journal.records import Message
from tests.adapters.agentchat import scripts
from tests.adapters.agentchat.teams import GIVEN, TEAMS, Ledger
from tests.adapters.openai.killing import child, prompts
from tests.adapters.openai.scripts import Hooks

pytestmark = [
    pytest.mark.durability,
    pytest.mark.timeout(3_600),  # With all places; some take a second.
    # The package's client asks the SDK for structured answers, and the SDK says so when dumping.
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings"),
]

# How many of the places where a program can die are tried; "all" for each of them.
KILLS = os.environ.get("PERDURE_KILLS", "1")
COMMAND = [sys.executable, "-m", "tests.adapters.agentchat.model"]
ROOT = Path(__file__).parents[3]
NOTICE = "the outcome of this"


class Servers:
    """Model servers in a process of their own, one after the other: each knows only its prompts."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        assert process.stdin is not None
        self._said, self._told = process.stdout, process.stdin

    def first(self) -> str:
        return self._said.readline().strip()

    def next(self) -> str:
        self._told.write("another\n")
        self._told.flush()
        return self.first()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    pipe = subprocess.PIPE
    with subprocess.Popen(COMMAND, stdin=pipe, stdout=pipe, text=True, cwd=ROOT) as process:
        found = Servers(process)
        # Children need not import again what this process has imported.
        url = found.first()
        for team in ("magentic", "streaming"):
            path = tmp_path_factory.mktemp("warm") / f"{team}.db"
            scripts.run(f"{team}:unsafe", url, path, Hooks())
        yield found
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


class Seen:
    """What a session holds at the end, without what is made anew in each process."""

    def __init__(self, path: Path) -> None:
        with perdure.open(path) as store:
            session = store.session(scripts.SESSION)
            assert session.interrupted == ()
            session.verify()
            self.messages = [
                (one.content.author, one.content.message)
                for one in session.records()
                if isinstance(one.content, Message)
            ]
            self.state = _lasting(session.get(STATE_KEY))
            self.tools = [one for one in session.effects.list() if one.kind == "tool"]
        self.ledger = Ledger(path.with_suffix(".ledger")).lines


def _lasting(value: Any) -> Any:
    """Leave out ids and times that the package makes, and the id of the run."""
    if isinstance(value, dict):
        made = {"id", "created_at", "run"}
        return {name: _lasting(one) for name, one in value.items() if name not in made}
    return [_lasting(one) for one in value] if isinstance(value, list) else value


def amounts(seen: Seen) -> list[int]:
    """Return what was charged; calls of one message are made side by side, in any order."""
    return sorted(one["amount"] for one in seen.ledger)


def without_repeats(sent: list[Any]) -> list[Any]:
    """A call that died is made again: with the same prompt, or it would show."""
    return [one for at, one in enumerate(sent) if at == 0 or one != sent[at - 1]]


def kills(counts: dict[str, int], seed: str) -> list[tuple[str, int]]:
    """Return places to die at: some of each kind, or all."""
    every = [(what, at) for what, count in sorted(counts.items()) for at in range(1, count + 1)]
    if KILLS == "all":
        print(f"{seed}: killed at {len(every)} places")
        return every
    random.Random(seed).shuffle(every)
    first = {what: (what, at) for what, at in every}
    return list(dict.fromkeys([*first.values(), *every]))[: int(KILLS)]


def whole(form: str, url: str, path: Path) -> tuple[dict[str, int], list[Any], Seen]:
    """Run a program that nobody interrupts; return what it did, was asked, and left."""
    counts = child(scripts.run, form, url, path)
    return counts, prompts(url), Seen(path)


def killed(form: str, url: str, path: Path, what: str, at: int) -> tuple[list[Any], Seen]:
    """Run a program that dies at a place, and run it again; return what was asked, and is left."""
    assert child(scripts.run, form, url, path, what=what, at=at) is None
    child(scripts.run, form, url, path)
    return prompts(url), Seen(path)


def cases(*policies: str) -> Iterator[Any]:
    """Yield teams and policies: each with each, or in the ordinary run each team once."""
    for number, team in enumerate(TEAMS):
        # Nobody can find out what an agent of unknown kind would have said.
        found = [one for one in policies if (team, one) != ("custom", "reconcile")]
        for policy in found if KILLS == "all" else [found[number % len(found)]]:
            yield pytest.param(team, policy, id=f"{team}-{policy}")


@pytest.mark.parametrize(("team", "policy"), [*cases("idempotent", "reconcile")])
def test_a_killed_team_that_is_run_again_says_and_hears_the_same(
    team: str, policy: str, servers: Servers, tmp_path: Path
) -> None:
    form = f"{team}:{policy}"
    counts, wanted, left = whole(form, servers.next(), tmp_path / "whole.db")
    assert len(left.ledger) == counts["received"] >= 2
    assert {"append", "sending", "received"} <= counts.keys()
    places = kills(counts, form)
    for what, at in places:
        path = tmp_path / f"{what}-{at}.db"
        sent, found = killed(form, servers.next(), path, what, at)
        assert without_repeats(sent) == wanted, (what, at)
        assert found.messages == left.messages, (what, at)
        assert found.state == left.state, (what, at)
        assert amounts(found) == amounts(left), (what, at)


@pytest.mark.parametrize("team", GIVEN)
@pytest.mark.parametrize("at", [2, 3, 4, 5])
def test_a_task_is_whole_wherever_its_run_was_beginning(
    at: int, team: str, servers: Servers, tmp_path: Path
) -> None:
    """After the state, the run, its turn with the first message, and the record after that."""
    form = f"{team}:idempotent"
    _, wanted, left = whole(form, servers.next(), tmp_path / "whole.db")
    sent, found = killed(form, servers.next(), tmp_path / "killed.db", "append", at)
    assert sent == wanted
    assert found.messages == left.messages
    assert found.state == left.state


@pytest.mark.parametrize("team", TEAMS if KILLS == "all" else ["round_robin", "graph", "custom"])
def test_a_killed_team_with_unsafe_tools_goes_on_and_says_what_nobody_knows(
    team: str, servers: Servers, tmp_path: Path
) -> None:
    form = f"{team}:unsafe"
    counts, _, left = whole(form, servers.next(), tmp_path / "whole.db")
    places = kills(counts, form)
    for what, at in places:
        path = tmp_path / f"{what}-{at}.db"
        sent, found = killed(form, servers.next(), path, what, at)
        keys = [line["key"] for line in found.ledger]
        assert len(keys) == len(set(keys)), (what, at)
        unknown = [one for one in found.tools if one.state == "unknown"]
        if what in ("sending", "received"):
            assert 1 <= len(unknown) <= 2, (what, at)  # Two calls can be under way.
        # The last reply of an agent of unknown kind is told to no model, but stands there.
        heard = [*sent, found.messages] if team == "custom" else sent
        told = [one for one in heard if NOTICE in str(one)]
        assert bool(told) == bool(unknown), (what, at)
        assert len(found.messages) >= 4
        assert {one.key for one in found.tools} - {*keys} <= {one.key for one in unknown}
        if not unknown:
            assert found.messages == left.messages, (what, at)
