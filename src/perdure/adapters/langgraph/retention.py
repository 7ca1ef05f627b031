"""Drop checkpoints of a thread, and free their space.

Dropping hides checkpoints with one note. To free their space, what the remaining ones need is
stored again at the end of the session, in one commit: their values in full, their writes, their
messages, and the history of delta channels. Then the session is compacted up to there. A crash in
between leaves a thread in which the same call finishes the work. Messages that others have added
to the session are kept: if there are any, only what is before all that is needed is dropped.
"""

from collections.abc import Sequence
from typing import Any

from perdure.adapters.langgraph.checkpoint_notes import Data
from perdure.adapters.langgraph.conversation import require_stored
from perdure.adapters.langgraph.message_table import resolve
from perdure.adapters.langgraph.state_codec import StateCodec
from perdure.adapters.langgraph.thread import Thread, append_message
from perdure.adapters.langgraph.thread_index import (
    CHECKPOINTS,
    NESTED,
    WRITES,
    CheckpointPlace,
    Key,
)
from perdure.errors import UsageError

COUNTERS = "counters_since_delta_snapshot"  # Metadata that names a checkpoint's delta channels.


def drop_checkpoints(thread: Thread, keys: Sequence[Key], codec: StateCodec) -> None:
    """Hide checkpoints. The session then shows the messages of the newest one that is left."""
    shown = thread.shown_messages(codec)
    thread.session.note({"drop": [[*key] for key in keys]}, topic=CHECKPOINTS)
    thread.index.read()
    left = shown - thread.shown_messages(codec) - thread.index.hidden
    if left:
        thread.conversation.retract(sorted(left), thread.index)


def prune_thread(thread: Thread, codec: StateCodec) -> None:
    """Keep only the newest checkpoint of each namespace, and free the space of the others."""
    kept = {place.key for place in thread.heads()}
    dropped = [place.key for place in thread.places() if place.key not in kept]
    if dropped:
        drop_checkpoints(thread, dropped, codec)
    first = _first_needed(thread, codec)
    if any(place.position > first for place in thread.index.dropped.values()):
        first = _store_again(thread, codec) or first
    thread.session.compact(before=first)
    thread.reset()


def _first_needed(thread: Thread, codec: StateCodec) -> int:
    """Return the first position that the newest checkpoints, or other writers' messages, need."""
    needed = [thread.session.position, *_other_messages(thread, codec)]
    for place in thread.heads():
        needed += thread.positions_of(place, codec)
    return min(needed)


def _other_messages(thread: Thread, codec: StateCodec) -> set[int]:
    """Return the positions of messages that the session shows and the thread does not have.

    Not those that a pruning stored again, and then was interrupted.
    """
    others = {*thread.index.messages} - thread.index.hidden - thread.shown_messages(codec)
    head = thread.head("")
    before = thread.notes.read(head.position).get("instead", []) if head is not None else []
    for first, last, _ in before:
        others -= {position for position in others if first <= position <= last}
    return others


def _store_again(thread: Thread, codec: StateCodec) -> int:
    """Store the newest checkpoints with all they need; return the first position, 0 if refused."""
    if _other_messages(thread, codec):
        return 0  # They would have to be stored again as well.
    root = thread.head("")
    listed = thread.notes.conversation(root.position) if root is not None else None
    messages = thread.value(root, listed[0], codec) if root is not None and listed else []
    stored = [require_stored(message, codec, "messages") for message in messages]
    places = sorted(thread.heads())
    start = thread.session.position + 1
    ranges = [[start, start + len(stored) - 1, len(stored)]]
    before = resolve(listed[2][1], listed[1]) if listed else []
    notes = [
        note for place in places for note in _notes_of(thread, place, ["m", ranges, True], codec)
    ]
    for _, data in notes:
        if before and "put" in data and "ns" not in data:
            data["instead"] = before
    try:
        with thread.session.batch(expect=thread.session.position) as batch:
            for message in stored:
                append_message(batch, message)
            for topic, data in notes:
                batch.note(data, topic=topic)
    except UsageError:  # More than one commit can hold: what is before all of it is dropped.
        return 0
    thread.reset()
    return start


def _notes_of(
    thread: Thread, place: CheckpointPlace, conversation: list[Any], codec: StateCodec
) -> list[tuple[str, Data]]:
    """Return the notes that a checkpoint consists of, without references to others."""
    old = thread.notes.read(place.position)
    versions, seen = thread.notes.versions(place.position)
    data: Data = {
        name: old[name] for name in ("put", "ts", "v", "meta", "ns", "more") if name in old
    }
    data |= {"versions": versions, "seen": seen, "values": {}, "again": True}
    parent = thread.parent_id(place)
    if parent is not None:
        data["parent"] = parent
    for channel in old["values"]:
        _, spec = thread.notes.spec(place.position, channel)
        is_tree = spec[0] != "m"
        data["values"][channel] = (
            ["v", thread.notes.tree(channel, spec)] if is_tree else conversation
        )
    deltas = [*codec.decode(old["meta"]).get(COUNTERS, ())]
    if deltas:
        data["history"] = thread.history(place, deltas)
    notes = [(NESTED if place.namespace else CHECKPOINTS, data)]
    for write in thread.writes(place):
        item: Data = {WRITES: place.id, "task": write.task, "replace": True}
        item["items"] = [[write.number, write.channel, write.tree]]
        item |= {
            name: value for name, value in (("ns", place.namespace), ("path", write.path)) if value
        }
        notes.append(("", item))
    return notes
