"""Deterministic embeddings: vectors that identify a text but carry no meaning. Pure."""

import base64
import hashlib
import math
import struct
from collections.abc import Mapping
from typing import Any

from perdure.testing.model_server.errors import missing_parameter
from perdure.testing.model_server.prompts import canonical, tokens

DIMENSIONS = 8


def embeddings(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of an answer: a vector for each text, or for each list of tokens."""
    value = body.get("input")
    if not value:
        raise missing_parameter("input")
    is_single = isinstance(value, str) or not isinstance(value[0], str | list)
    texts = [value] if is_single else [*value]
    size = int(body.get("dimensions") or DIMENSIONS)
    vectors = [_vector(canonical(text), size) for text in texts]
    as_base64 = body.get("encoding_format") == "base64"
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": _encode(vector) if as_base64 else vector,
        }
        for index, vector in enumerate(vectors)
    ]
    used = sum(tokens(canonical(text)) for text in texts)
    usage = {"prompt_tokens": used, "total_tokens": used}
    return {"object": "list", "data": data, "model": body["model"], "usage": usage}


def _vector(text: str, size: int) -> list[float]:
    """Derive a unit vector from a text: always the same one, and its own."""
    parts = [hashlib.sha256(f"{index} {text}".encode()).digest() for index in range(size)]
    raw = [int.from_bytes(part[:4]) / 2**31 - 1 for part in parts]
    length = math.hypot(*raw) or 1.0
    return [value / length for value in raw]


def _encode(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
