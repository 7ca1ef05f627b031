"""A model server in a process of its own. What it answers depends on the whole prompt.

A prompt that ends with `CALL name {json}` is answered with these calls; one that asks for the next
speaker with a name, now and then with two at once or with none; others with a digest.
"""

import json
import re
import sys
from hashlib import sha256
from typing import Any

from perdure.testing import ModelServer

CALL = re.compile(r"CALL (\w+) (\{[^}]*\})")
SPEAKERS = re.compile(r"select the next role from (\[[^\]]*\])")


def digest(body: Any) -> str:
    text = json.dumps([body["messages"], body.get("tools")], sort_keys=True)
    return sha256(text.encode()).hexdigest()


def answer(body: Any) -> Any:
    last = body["messages"][-1]
    text = last["content"] if isinstance(last["content"], str) else ""
    found = digest(body)
    if "role play game" in str(body["messages"][0]["content"]):
        return speaker(str(body["messages"][0]["content"]), int(found[:8], 16))
    calls = CALL.findall(text) if last["role"] != "tool" else []
    if calls and body.get("tools"):
        return [{"name": name, "arguments": json.loads(given)} for name, given in calls]
    return f"digest {found[:12]}"


def speaker(instructions: str, chance: int) -> str:
    names = re.findall(r"'(\w+)'", SPEAKERS.findall(instructions)[0])
    if chance % 4 == 0:
        return f"{names[0]} or {names[-1]}"
    if chance % 7 == 0:
        return "somebody"
    return str(names[chance % len(names)])


if __name__ == "__main__":
    with ModelServer(answer) as server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        sys.stdin.read()
