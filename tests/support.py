"""Small things that many tests need."""

from typing import Any

import perdure
from perdure.backends.memory import MemoryBackend


def said(text: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": text}


def store_in_memory() -> tuple[perdure.Store, MemoryBackend]:
    backend = MemoryBackend()
    return perdure.open(backend), backend


def contents(session: perdure.Session) -> list[str]:
    return [message["content"] for message in session.messages()]
