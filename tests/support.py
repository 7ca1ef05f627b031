"""Small things that many tests need."""

from typing import Any

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.journal.records import EffectOutcome, TurnEnd


def said(text: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": text}


def store_in_memory() -> tuple[perdure.Store, MemoryBackend]:
    backend = MemoryBackend()
    return perdure.open(backend), backend


def contents(session: perdure.Session) -> list[str]:
    return [message["content"] for message in session.messages()]


def forgotten(session: perdure.Session) -> list[str]:
    """Return the ids and keys of callers in a session that are not found where they are."""
    stored: dict[str, int] = {}
    for record in session.records():
        if isinstance(record.content, EffectOutcome) and record.content.intent:
            stored[record.content.identity] = record.position
        elif isinstance(record.content, TurnEnd):  # A turn is found at its newest end.
            stored[record.content.turn] = record.position
        elif not record.id.startswith(".") and "\t" not in record.id:
            stored[record.id] = record.position
    batch = session._replica.new_batch()
    stored = {key: place for key, place in stored.items() if not key.startswith(".")}
    found = {key: session._handle.run(batch.find(key)) for key in stored}
    return [key for key, place in stored.items() if getattr(found[key], "position", 0) != place]
