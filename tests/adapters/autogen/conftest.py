"""The framework, imported once; a server and agents for each test."""

import functools
import ssl
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.testing import ModelServer
from tests.adapters.autogen.server import answer

with warnings.catch_warnings():
    # An old one warns of what it misses, which is not ours to fix.
    warnings.simplefilter("ignore")
    import autogen

# Every client loads certificates, which takes longer than a chat, and nobody here needs them.
ssl.create_default_context = functools.cache(ssl.create_default_context)  # type: ignore[assignment]


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(answer) as server:
        yield server


@pytest.fixture
def store(tmp_path: Path) -> Iterator[perdure.Store]:
    with perdure.open(tmp_path / "agents.db") as store:
        yield store


class Cast:
    """Makes agents for a test, as a process does that starts anew."""

    def __init__(self, url: str) -> None:
        config = {"model": "m", "base_url": url, "api_key": "test", "max_retries": 0}
        self.llm = {"config_list": [config], "cache_seed": None}
        self._made: list[Any] = []

    def close(self) -> None:
        """Close the connections of the agents: who collects them later is warned of them."""
        for client in [one for agent in self._made for one in agent.client._clients]:
            client._oai_client.close()

    def assistant(self, name: str = "assistant", system: str = "You are a clerk.") -> Any:
        made = autogen.AssistantAgent(name, system, llm_config=self.llm)
        self._made.append(made)
        return made

    def user(self, name: str = "user_proxy", **options: Any) -> Any:
        plain = {"human_input_mode": "NEVER", "code_execution_config": False}
        given = {"max_consecutive_auto_reply": 0, **plain, **options}
        return autogen.UserProxyAgent(name, **given)

    def pair(self, **options: Any) -> tuple[Any, Any]:
        return self.user(**options), self.assistant()

    def group(self, *names: str, **options: Any) -> Any:
        noted = {"max_consecutive_auto_reply": None, "default_auto_reply": "Noted."}
        agents = [self.user("clerk", **noted), *(self.assistant(name) for name in names)]
        given = {"max_round": 3, "speaker_selection_method": "round_robin", **options}
        chat = autogen.GroupChat(agents=agents, messages=[], **given)
        made = autogen.GroupChatManager(chat, llm_config=self.llm)
        self._made.append(made)
        return made


@pytest.fixture
def cast(server: ModelServer) -> Iterator[Cast]:
    cast = Cast(server.url)
    yield cast
    cast.close()
