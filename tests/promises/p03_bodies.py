"""P3, large bodies: the process is killed at any call that changes a file, or at any message.

What is left has each message, value and note with all of its parts, or does not have it. Parts that
nothing cites change nothing: the same calls again store what is missing, and a compaction drops the
rest.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import perdure
from tests.promises import works
from tests.promises.kinds import KINDS
from tests.promises.promise import Promise
from tests.promises.works import Work
from tests.support import said

PIECE = 400_000
TEXT = "A long text. " * 100_000
PICTURE = bytes(range(256)) * 400
VIDEO = [bytes([number]) * PIECE for number in range(8)]


def prepare(store: perdure.Store) -> None:
    store.session("media").append(said("before"))


def act(store: perdure.Store) -> None:
    """Store a text and a picture in one append, and a video by itself; again, to no effect."""
    session = store.session("media")
    session.append(said(TEXT), {"role": "user", "content": [_picture()]}, id="long")
    if session.get("video") is None:
        session.set("video", {"seconds": 8, "data": session.upload(_chunks())})
    session.note({"picture": PICTURE}, id="note", topic="seen")


def _chunks() -> Iterator[bytes]:
    yield from VIDEO


def _picture() -> dict[str, Any]:
    import base64

    url = "data:image/png;base64," + base64.b64encode(PICTURE).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def judge(store: perdure.Store) -> str:
    if failure := _judge(store.session("media"), is_whole=False):
        return failure
    act(store)
    session = store.session("media")
    if failure := _judge(session, is_whole=True):
        return f"done again: {failure}"
    session.append(*(said(str(number)) for number in range(5)))
    session.compact(keep=2)
    session = store.session("media")
    session.verify()
    parts = sum(record.kind == "part" for record in session.records())
    # Those of the video and of the picture in the note are carried; nothing else cites any.
    if parts > 5:
        return f"{parts} parts are left after a compaction"
    value: Any = session.get("video")
    return "" if value["data"] == b"".join(VIDEO) else "compacted, the video is another one"


def _judge(session: perdure.Session, *, is_whole: bool) -> str:
    """Say which of the records have something else than all of their bodies."""
    session.verify()
    messages = session.messages(format="openai.chat")
    if messages[1:] not in ([], [said(TEXT), {"role": "user", "content": [_picture()]}]):
        return f"{len(messages)} messages, of which one is not whole"
    value: Any = session.get("video")
    if value is not None and value != {"seconds": 8, "data": b"".join(VIDEO)}:
        return "the video is not whole"
    notes: list[Any] = [record.content for record in session.notes("seen")]
    if notes and notes[0].data != {"picture": PICTURE}:
        return "the note is not whole"
    found = (len(messages), value is not None, len(notes))
    return f"{found} of it is there" if is_whole and found != (3, True, 1) else ""


WORK = Work("bodies", prepare, act, judge)
SAYS = "kill -9 while large bodies are stored leaves all of each or none of it"
PROMISES = [
    Promise("P3", SAYS, 500, partial(works.file_trials, WORK, kind), f"{kind.name}-bodies")
    for kind in KINDS
]
PROMISES += [Promise("P3", SAYS, 500, partial(works.postgres_trials, WORK), "postgres-bodies")]
