"""Agents for the tests, what they do to the outside world, and who asks the model for them."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    function_tool,
    set_tracing_disabled,
)

import perdure

set_tracing_disabled(disabled=True)

Reach = Callable[[str], None]


def nothing(_: str) -> None: ...


class Ledger:
    """The outside world: a file in which each line is money that was really charged."""

    def __init__(self, path: Path, reach: Reach = nothing) -> None:
        self._path, self._reach = path, reach

    @property
    def lines(self) -> list[Any]:
        if not self._path.exists():
            return []
        return [json.loads(line) for line in self._path.read_text("utf-8").splitlines()]

    @property
    def amounts(self) -> list[int]:
        return [line["amount"] for line in self.lines]

    def charge(self, amount: int, key: str) -> str:
        self._reach("sending")
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, "amount": amount}) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._reach("received")
        return f"charged {amount}"

    def charge_once(self, amount: int, key: str) -> str:
        """Charge as a service does that knows the key of a repeated request."""
        if any(line["key"] == key for line in self.lines):
            return f"charged {amount}"
        return self.charge(amount, key)

    def find_out(self, effect: perdure.Effect) -> perdure.Happened | perdure.DidNotHappen:
        """Look whether a charge took place, as the policy `reconcile` wants it."""
        if any(line["key"] == effect.key for line in self.lines):
            return perdure.Happened(f"charged {effect.arguments['amount']}")
        return perdure.DidNotHappen()


def tool(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Make a function a tool, as the SDK's `function_tool` does."""
    made: Callable[[Callable[..., Any]], Any] = function_tool(**options)
    return made


@contextmanager
def current_key() -> Iterator[str]:
    try:
        yield perdure.current_effect().key
    except perdure.UsageError:  # With the SDK alone.
        yield ""


def build(name: str, client: Any, ledger: Ledger) -> Any:
    """Return the agent that a form of the script names."""

    @tool()
    def charge(amount: int) -> str:
        """Charge an amount."""
        with current_key() as key:
            return ledger.charge(amount, key)

    @tool()
    def charge_once(amount: int) -> str:
        """Charge an amount, with a key."""
        with current_key() as key:
            return ledger.charge_once(amount, key)

    kind = OpenAIChatCompletionsModel if name == "chat" else OpenAIResponsesModel
    model = kind("gpt-4o", client)
    tools = [charge, charge_once]
    if name == "handoff":
        billing = Agent(name="billing", tools=tools, model=model)
        return Agent(name="triage", handoffs=[billing], model=model)
    if name == "nested":
        expert = Agent(name="expert", tools=tools, model=model)
        asked = expert.as_tool("ask_expert", "Ask the expert.")
        return Agent(name="clerk", tools=[asked], model=model)
    return Agent(name="clerk", instructions="Be brief.", tools=tools, model=model)


def make_client(url: str, reach: Reach = nothing) -> Any:
    async def sending(_: Any) -> None:
        reach("request")

    async def received(_: Any) -> None:
        reach("response")

    http_client = openai.DefaultAsyncHttpxClient(
        verify=False,  # Loading certificates takes longer than the script.
        event_hooks={"request": [sending], "response": [received]},
    )
    return openai.AsyncOpenAI(base_url=url, api_key="test", http_client=http_client, max_retries=0)
