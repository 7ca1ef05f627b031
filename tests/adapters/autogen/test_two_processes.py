"""Two processes at one chat: one goes on, the other is told, and nothing is mixed."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.adapters.autogen import persist
from perdure.testing import ModelServer
from tests.adapters.autogen.conftest import Cast
from tests.adapters.autogen.killing import serving
from tests.adapters.autogen.scripts import PROMPTS, SESSION, Scene, pair

pytestmark = pytest.mark.durability


@pytest.fixture
def url() -> Iterator[str]:
    with serving() as url:
        yield url


def forked(function: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            function()
        finally:
            os._exit(0)
    return pid


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def worker(name: str, url: str, folder: Path, lease: float | None) -> Callable[[], None]:
    """Return what runs the chat, waits in its first tool, and leaves a word on how it ended."""

    def reach(_: str) -> None:
        (folder / f"{name}.inside").touch()
        until((folder / f"{name}.go").exists)

    def run() -> None:
        try:
            scene = Scene(url, folder, "idempotent", reach)
            agents = pair(scene, scene.charge)
            with perdure.open(folder / "s.db") as store:
                session = store.session(SESSION)
                with persist(session, *agents, tools=scene.tools, lease=lease):
                    agents[0].initiate_chat(agents[1], message=PROMPTS[0])
            ended = "done"
        except Exception as error:  # noqa: BLE001 - the test reads it
            ended = f"{type(error).__name__}: {error}"
        (folder / f"{name}.tmp").write_text(ended)
        (folder / f"{name}.tmp").rename(folder / f"{name}.ended")

    return run


def ended(folder: Path, name: str) -> str:
    until((folder / f"{name}.ended").exists)
    return (folder / f"{name}.ended").read_text()


def messages(folder: Path) -> list[dict[str, Any]]:
    with perdure.open(folder / "s.db") as store:
        session = store.session(SESSION)
        session.verify()
        assert session.interrupted == ()
        return list(session.messages())


def whole(url: str, folder: Path) -> list[dict[str, Any]]:
    folder.mkdir()
    (folder / "a.go").touch()
    os.waitpid(forked(worker("a", url, folder, None)), 0)
    assert ended(folder, "a") == "done"
    return messages(folder)


def test_who_begins_again_takes_the_chat_over_and_the_first_is_told(
    url: str, tmp_path: Path
) -> None:
    expected = whole(url, tmp_path / "whole")
    first = forked(worker("a", url, tmp_path, None))
    until((tmp_path / "a.inside").exists)
    (tmp_path / "b.go").touch()
    os.waitpid(forked(worker("b", url, tmp_path, None)), 0)
    assert ended(tmp_path, "b") == "done"
    assert messages(tmp_path) == expected
    (tmp_path / "a.go").touch()
    os.waitpid(first, 0)
    refused = "ConflictError: conflict in session 'claim-4711' (another process"
    assert refused in ended(tmp_path, "a")
    assert messages(tmp_path) == expected  # Nothing of the first came after.


def test_who_has_a_lease_keeps_the_chat_and_the_second_is_told(url: str, tmp_path: Path) -> None:
    expected = whole(url, tmp_path / "whole")
    first = forked(worker("a", url, tmp_path, 3.0))
    until((tmp_path / "a.inside").exists)
    (tmp_path / "b.go").touch()
    os.waitpid(forked(worker("b", url, tmp_path, 3.0)), 0)
    assert ended(tmp_path, "b").startswith("LeaseHeldError")
    (tmp_path / "a.go").touch()
    os.waitpid(first, 0)
    assert ended(tmp_path, "a") == "done"
    assert messages(tmp_path) == expected


def test_the_lease_of_a_process_that_died_is_waited_for(url: str, tmp_path: Path) -> None:
    expected = whole(url, tmp_path / "whole")
    first = forked(worker("a", url, tmp_path, 1.0))
    until((tmp_path / "a.inside").exists)
    os.kill(first, 9)
    os.waitpid(first, 0)
    (tmp_path / "b.go").touch()
    os.waitpid(forked(worker("b", url, tmp_path, 1.0)), 0)
    assert ended(tmp_path, "b") == "done"
    assert messages(tmp_path) == expected


def test_who_comes_second_knows_what_the_first_said_meanwhile(
    cast: Cast, server: ModelServer, tmp_path: Path
) -> None:
    path, pairs = tmp_path / "s.db", [cast.pair(), cast.pair()]
    with perdure.open(path) as first, perdure.open(path) as second:
        one, other = (store.session(SESSION) for store in (first, second))
        with persist(one, *pairs[0]) as chat, persist(other, *pairs[1]) as later:
            for at, (user, assistant) in enumerate([pairs[0], pairs[1], pairs[0]]):
                user.initiate_chat(assistant, message=f"prompt {at}")
                told = [said["content"] for said in server.requests[-1].body["messages"]]
                assert told[1::2] == [f"prompt {before}" for before in range(at + 1)]
            pairs[1][1].update_system_message("You have been here before.")
            assert later.finished == 3
            assert chat.resume() is None
            assert pairs[0][1].system_message == "You have been here before."
    user, assistant = cast.pair()
    with perdure.open(path) as store, persist(store.session(SESSION), user, assistant) as chat:
        assert (chat.finished, chat.interrupted) == (3, None)
        assert len(user.chat_messages[assistant]) == 6


def test_a_chat_that_another_process_ended_is_not_begun_again(
    cast: Cast, server: ModelServer, tmp_path: Path
) -> None:
    path, pairs = tmp_path / "s.db", [cast.pair(), cast.pair()]
    with perdure.open(path) as first, perdure.open(path) as second:
        one, other = (store.session(SESSION) for store in (first, second))
        with persist(one, *pairs[0]) as chat:
            server.fault(status=500, at=1)
            with pytest.raises(Exception, match="500"):
                pairs[0][0].initiate_chat(pairs[0][1], message="prompt")
            with persist(other, *pairs[1]) as later:
                assert later.resume() is not None
            assert chat.resume() is None
            with pytest.raises(perdure.UsageError, match="nothing to abandon"):
                chat.abandon()
            assert len(pairs[0][0].chat_messages[pairs[0][1]]) == 2
    assert len(server.requests) == 2
