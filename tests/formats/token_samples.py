"""Texts to count, in many languages and of many kinds, such as conversations hold."""

import base64
import json
import random
import string
import uuid
from collections.abc import Iterator
from pathlib import Path

import perdure

# Article 1 of the Universal Declaration of Human Rights, a language a line.
DECLARATION = dict(
    line.split(": ", 1)
    for line in Path(__file__).with_name("languages.txt").read_text("utf-8").splitlines()
)

PROSE = [
    DECLARATION["English"],
    "The assistant keeps what was said in a journal, so that a process that dies can go on.",
    """I checked the policy that you sent on Tuesday. It was in force on the date of loss, but the
limit of authority of this adjuster is lower than the claim, so the file goes to the manager.""",
    """Once there was a miller who was poor, but he had one beautiful daughter. It happened one day
that he came to speak with the king, and, to give himself consequence, he told him that he had a
daughter who could spin gold out of straw.""",
]

EMOJI = ["👍", "🎉", "😂", "❤️", "👩🏽‍💻", "👨‍👩‍👧‍👦", "🇩🇪", "🇯🇵", "🏳️‍🌈", "1️⃣", "✅", "🚀", "☺️"]


def samples(seed: int = 1) -> Iterator[tuple[str, str]]:
    """Yield what a text is, and the text."""
    yield from DECLARATION.items()
    yield from (("prose", text) for text in PROSE)
    yield "everything", "\n\n".join(DECLARATION.values())
    draw = random.Random(seed)
    for size in (1, 4, 20, 200):
        for _ in range(5):
            yield from _generated(draw, size)
    for path in sorted(Path(perdure.__file__).parent.glob("*.py")):
        text = path.read_text("utf-8")
        start = draw.randrange(len(text))
        yield f"code of {path.name}", text[start : start + 2_000]


def _generated(draw: random.Random, size: int) -> Iterator[tuple[str, str]]:
    def letters(alphabet: str, count: int) -> str:
        return "".join(draw.choices(alphabet, k=count))

    def tree(depth: int = 3) -> object:
        if depth == 0 or draw.random() < 0.4:
            words = draw.choice(list(DECLARATION.values())).split()
            return draw.choice([draw.randrange(10**6), draw.random(), None, True, words[0], "ok"])
        if draw.random() < 0.3:
            return [tree(depth - 1) for _ in range(draw.randrange(4))]
        return {letters("aeinorst_", 6): tree(depth - 1) for _ in range(draw.randrange(1, 5))}

    trees = [tree() for _ in range(size)]
    yield "JSON", json.dumps(trees)
    yield "JSON, indented", json.dumps(trees, indent=2, ensure_ascii=False)
    yield "JSON, compact", json.dumps(trees, separators=(",", ":"))
    yield "JSON in JSON", json.dumps({"arguments": json.dumps(trees)})
    yield "base64", base64.b64encode(draw.randbytes(size * 10)).decode()
    yield "hexadecimal", draw.randbytes(size * 5).hex()
    ids = [str(uuid.UUID(int=draw.getrandbits(128))) for _ in range(size)]
    yield "ids", "\n".join(ids)
    yield "digits", " ".join(letters(string.digits, 1) for _ in range(size * 4))
    yield "matrix", json.dumps([[draw.randrange(10) for _ in range(5)] for _ in range(size)])
    yield "numbers", json.dumps([round(draw.uniform(-99, 99), 2) for _ in range(size * 3)])
    rows = (",".join(str(draw.randrange(1000)) for _ in range(5)) for _ in range(size))
    yield "table", "\n".join(rows)
    yield "board", "\n".join(" ".join(letters("XO.", 3)) for _ in range(size))
    yield "password", letters(string.ascii_letters + string.digits + string.punctuation, size * 5)
    yield "emoji", "".join(draw.choices(EMOJI, k=size))
    chat = ("ok ", "thanks", "see you soon ", "on my way")
    yield "chat", " ".join(draw.choice(chat) + draw.choice(EMOJI) for _ in range(size))
    yield "log", "\n".join(_log_line(draw) for _ in range(size))
    path = letters(string.ascii_letters + string.digits, 22)
    yield "address", f"https://example.com/{path}?v={size}"
    yield "many languages", " ".join(draw.choices(list(DECLARATION.values()), k=size // 20 + 1))


def _log_line(draw: random.Random) -> str:
    time = f"2026-11-{draw.randrange(10, 30)}T10:{draw.randrange(10, 60)}:07.{draw.randrange(999)}Z"
    return (
        f"{time} [INFO] worker-{draw.randrange(9)} GET /v1/items/{draw.randrange(9999)}?q=%20 200"
    )
