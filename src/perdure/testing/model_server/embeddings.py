"""Vectors that say nothing about a text but which text it is. Pure."""

import base64
import hashlib
import math
import struct
from collections.abc import Mapping
from typing import Any

from perdure.testing.model_server.errors import missing
from perdure.testing.model_server.prompts import canonical, tokens

DIMENSIONS = 8


def embeddings(body: Mapping[str, Any]) -> dict[str, Any]:
    """Make the body of an answer: a vector for each text, or for each list of tokens."""
    given = body.get("input")
    if not given:
        raise missing("input")
    one = isinstance(given, str) or not isinstance(given[0], str | list)
    texts = [given] if one else [*given]
    size = int(body.get("dimensions") or DIMENSIONS)
    vectors = [_vector(canonical(text), size) for text in texts]
    packed = body.get("encoding_format") == "base64"
    data = [
        {"object": "embedding", "index": index, "embedding": _packed(one) if packed else one}
        for index, one in enumerate(vectors)
    ]
    used = sum(tokens(canonical(text)) for text in texts)
    usage = {"prompt_tokens": used, "total_tokens": used}
    return {"object": "list", "data": data, "model": body["model"], "usage": usage}


def _vector(text: str, size: int) -> list[float]:
    """Make a direction of a text: its own, and always the same."""
    parts = [hashlib.sha256(f"{index} {text}".encode()).digest() for index in range(size)]
    raw = [int.from_bytes(part[:4]) / 2**31 - 1 for part in parts]
    length = math.hypot(*raw) or 1.0
    return [value / length for value in raw]


def _packed(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
