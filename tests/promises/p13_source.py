"""The random source that conversations of all formats are drawn from."""

import json
import random
from typing import Any, NamedTuple

TEXTS = (
    "",
    "Guten Tag",
    "日本語のテキスト",
    "emoji 🧨👩‍👩‍👧",
    "line\nbreaks\r\n\ttabs",
    " trailing   ",
    "\u200b\u0000\u202e",
    '{"json": [1, 2]}',
    "</s><|im_end|>",
    "x" * 300,
    "ends with a space ",
)
NAMES = (
    "lookup",
    "charge_card",
    "mcp__server-1__tool",
    "send mail",
    "über.tool",
    "9lives",
    "n" * 90,
)
IDS = ("call_1", "call_2", "toolu_01A", "id with spaces/slash", "c" * 70, "0", "call_1_2")
ROLES = ("bot", "", "SYSTEM", "human")
AUTHORS = ("", "", "ann", "bob", "Cy Dee", "dora")
PICTURE = "iVBORw0KGgoAAAANSUhEUg=="
SOURCES: tuple[dict[str, Any], ...] = (
    {"type": "base64", "media_type": "image/png", "data": PICTURE},
    {"type": "url", "url": "https://example.org/a.png"},
    {"type": "file", "file_id": "file_9"},
)


class Drawn(NamedTuple):
    """A message, its marker, and whether every format can say what it says."""

    message: dict[str, Any]
    marker: str
    universal: bool = True


class Call(NamedTuple):
    id: str
    name: str
    marker: str


class Source:
    """Conversations of one random source. `reasoning_of` is what the provider knows of its ids."""

    def __init__(self, draw: random.Random, *, tame: bool = False) -> None:
        self.draw = draw
        self.tame = tame  # Only names and ids that every provider takes.
        self.reasoning_of: dict[str, str] = {}
        self.hosted: set[str] = set()
        self.disturbed = False
        self.cut = False
        self.count = 0
        self.marker = ""

    def odds(self, chance: float) -> bool:
        return self.draw.random() < chance

    def pick(self, *choices: Any) -> Any:
        return self.draw.choice(choices)

    def mark(self) -> str:
        self.count += 1
        self.marker = f"m{self.count}m"
        return self.marker

    def text(self) -> str:
        """Return a text with a new marker, with white space at its ends now and then."""
        return f"{self.pick(*TEXTS)}{self.mark()}{self.pick(*TEXTS)}"

    def drawn(self, message: dict[str, Any], *, universal: bool = True) -> Drawn:
        return Drawn(message, self.marker, universal)

    def id(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count:04}"

    def calls(self, prefix: str) -> list[Call]:
        """Return calls made at once; now and then with names and ids that others used or refuse."""
        calls = []
        for _ in range(self.pick(1, 1, 2, 3)):
            wild = not self.tame and self.odds(0.3)
            id = self.pick(*IDS) if wild else self.id(prefix)
            name = self.pick(*NAMES) if wild else self.pick(*NAMES[:3])
            calls.append(Call(id, name, self.mark()))
        return calls

    def arguments(self, call: Call) -> str:
        good = json.dumps({"q": call.marker, "n": self.pick(1, 2.5, None, [True, {"a": "ä"}])})
        if self.tame or self.odds(0.8):
            return good
        return str(self.pick(good[:-3], f'["{call.marker}"]', f'"{call.marker}"', call.marker))
