"""What the model answers in these tests: a function of the whole prompt, so differences show.

As a process of its own: `python -m tests.adapters.agentchat.model`.
"""

import json
import re
import sys
from typing import Any

from perdure.testing import ModelServer
from perdure.testing.model_server.prompts import digest

ENOUGH = 14  # Messages in a prompt after which everybody is content.


def answer(body: Any) -> Any:
    """Answer as a digest of the prompt says: a text, calls of tools, or who is to speak next."""
    messages = body["messages"]
    seed = digest(messages)
    number = int(seed, 16)
    if names := _candidates(messages):
        return names[number % len(names)]
    if "json_schema" in (body.get("response_format") or {}):
        return json.dumps(_ledger(messages, number))
    tools = [tool["function"]["name"] for tool in body.get("tools") or ()]
    calls = _calls(messages, tools, number)
    if calls and body.get("tool_choice") != "none":
        return calls
    word = "APPROVE" if len(messages) > ENOUGH or number % 3 == 0 else "REVISE"
    return f"Answer {seed} to {len(messages)} messages: {word}."


def _candidates(messages: list[Any]) -> list[str]:
    """Return those whom a selector may choose, if it is one who asks."""
    found = re.search(r"select the next role from \[(.*?)\]", _text(messages[0]))
    return re.findall(r"'(\w+)'", found[1]) if found else []


def _ledger(messages: list[Any], number: int) -> Any:
    """Return what the orchestrator of MagenticOne is told of the progress."""
    done = len(messages) > 5
    told = {
        "is_request_satisfied": done,
        "is_in_loop": False,
        "is_progress_being_made": True,
        "next_speaker": ["clerk", "critic"][number % 2],
        "instruction_or_question": f"Go on with {number % 1000}.",
    }
    return {name: {"reason": "because", "answer": one} for name, one in told.items()}


def _calls(messages: list[Any], tools: list[str], number: int) -> list[Any]:
    if messages[-1]["role"] == "tool":
        return []
    made = sum(len(one.get("tool_calls") or ()) for one in messages)
    calls = []
    if "charge" in tools and (made < 3 or number % 4 == 0):
        calls = [{"name": "charge", "arguments": {"amount": number % 900 + made}}]
        if number % 2:
            calls += [{"name": "charge", "arguments": {"amount": number % 700 + 1000}}]
    elif "expert" in tools and made < 3:
        calls = [{"name": "expert", "arguments": {"task": f"Consider {number % 1000}."}}]
    handoffs = [name for name in tools if name.startswith("transfer_to_")]
    if handoffs and not calls:
        calls = [{"name": handoffs[number % len(handoffs)], "arguments": {}}]
    return calls


def _text(message: Any) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else json.dumps(content)


def main() -> None:
    """Serve at the address that is printed; for each line of input, anew at another."""
    while True:
        with ModelServer(answer) as server:
            sys.stdout.write(f"{server.url}\n")
            sys.stdout.flush()
            if not sys.stdin.readline():
                return


if __name__ == "__main__":
    main()
