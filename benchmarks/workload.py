"""What everybody stores: turns of two to four messages, the same ones for the same seed. Pure.

The sizes are those of ordinary agents: a question of 200 B, an answer of 800 B, now and then a tool
call with a result of 2 kB; 1,949 B of JSON a turn on average. One text in five is not ASCII.
"""

import random
from typing import Any

import msgspec

Message = dict[str, Any]
Turn = list[Message]

SEED = 20_260_101
TOOL_TURNS = 0.383  # Shares that bring the mean to 1,949 B.
NOTED_TURNS = 0.2

_WORDS = (
    *("claim", "escalate", "review", "policy", "ledger", "invoice", "deadline", "because"),
    *("therefore", "of", "the", "and", "which", "refund", "was", "approved", "it", "is"),
)
_FOREIGN = ("Prüfung", "naïve", "東京", "déjà", "señor", "Straße", "…", "—")


def turns(count: int, *, seed: int = SEED) -> list[Turn]:
    """Return turns for a session that goes on."""
    rng = random.Random(seed)
    return [_turn(rng) for _ in range(count)]


def triples(count: int, *, seed: int = SEED) -> list[Turn]:
    """Return turns of three messages: a question, a remark and an answer."""
    rng = random.Random(seed)
    return [[_said(rng, "user", 200), _noted(rng), _answered(rng)] for _ in range(count)]


def json_size(turn: Turn) -> int:
    """Return the bytes of a turn's messages as compact JSON in UTF-8."""
    return sum(len(msgspec.json.encode(message)) for message in turn)


def _turn(rng: random.Random) -> Turn:
    turn = [_said(rng, "user", 200)]
    kind = rng.random()
    if kind < TOOL_TURNS:
        turn += _tool_call(rng)
    elif kind < TOOL_TURNS + NOTED_TURNS:
        turn.append(_noted(rng))
    turn.append(_answered(rng))
    return turn


def _answered(rng: random.Random) -> Message:
    return _said(rng, "assistant", 800)


def _noted(rng: random.Random) -> Message:
    return _said(rng, "system", 150)


def _said(rng: random.Random, role: str, size: int) -> Message:
    return {"role": role, "content": _text(rng, round(size * rng.uniform(0.5, 1.5)))}


def _tool_call(rng: random.Random) -> Turn:
    call = f"call_{rng.getrandbits(64):016x}"
    arguments = msgspec.json.encode({"query": _text(rng, 60), "limit": rng.randrange(50)}).decode()
    function = {"name": "look_up_claims", "arguments": arguments}
    return [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": call, "type": "function", "function": function}],
        },
        {
            "role": "tool",
            "tool_call_id": call,
            "content": _text(rng, round(1_920 * rng.uniform(0.5, 1.5))),
        },
    ]


def _text(rng: random.Random, size: int) -> str:
    words = [rng.choice(_WORDS) for _ in range(size // 4)]
    if rng.random() < 0.2:
        words[rng.randrange(len(words))] = rng.choice(_FOREIGN)
    return " ".join(words)[:size]
