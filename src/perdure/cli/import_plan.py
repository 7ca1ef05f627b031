"""What an import appends: batches of messages, then notes, each under an id from the file's digest.

So an import that was killed goes on where it stopped when it is called again, and one that came to
its end adds nothing. The ids are looked for in the whole session: a session remembers the last
thousand only.
"""

from collections.abc import Generator, Iterator
from hashlib import sha256
from itertools import groupby
from typing import Any, NamedTuple

from perdure import codec
from perdure.cli.text import safe
from perdure.codec import Codec
from perdure.errors import NotFoundError, UsageError
from perdure.importing.autogen import CHANNEL, Chat, Pair, chat_of
from perdure.importing.messages import Imported, Leftover, parse
from perdure.records import Message, Record
from perdure.store import Store
from perdure.writing import require_session_id

BATCH_MESSAGES = 500  # A batch is one append, held in memory and stored whole or not at all.
BATCH_BYTES = 4 * 2**20
NOTE_BYTES = 2**20  # Of leftover text in one note; a record holds 16 times as much, as JSON.
RECORD_SLACK = 4_096  # What a record says besides its message.
REPAIRS_NOTED = 5_000  # In one note; each is a short line.


class Batch(NamedTuple):
    """Messages for one append, and whose they are."""

    messages: list[dict[str, Any]]
    author: str = ""
    recipient: str = ""
    channel: str = ""


class Plan(NamedTuple):
    """A file that was read, and what is to be appended of it."""

    file: str
    session: str
    digest: str
    imported: Imported
    batches: list[Batch]
    kind: str = ""
    """What sort of list it was taken for: the same file can be more than one."""

    @property
    def origin(self) -> str:
        return f"import:{safe(self.file)}"

    def id(self, part: object) -> str:
        return f"import-{self.digest[:32]}-{self.kind}{part}"


class Step(NamedTuple):
    """What one append added, and where the session is after it."""

    position: int
    messages: int


class Seen(NamedTuple):
    """What of an import a session holds already, where it ended, and how many other messages."""

    ids: frozenset[str] = frozenset()
    end: int = 0
    others: int = 0


def plan(
    file: str, data: bytes, session: str, *, autogen: bool = False, agents: Pair | None = None
) -> Plan:
    """Read a file and cut its messages into batches; the same bytes give the same ones.

    With `autogen`, it is a list that an agent of a pair kept: each message has its speaker.
    """
    try:
        require_session_id(session)
    except UsageError as error:
        raise UsageError(f"{error}: give --session with another one") from error
    imported = parse(data)
    if autogen:
        chat = chat_of(imported, agents)
        imported, batches = chat.imported, [*_spoken(chat)]
    else:
        batches = [*_batches(imported.messages)]
    kind = f"{CHANNEL}-" if autogen else ""
    return Plan(file, session, sha256(data).hexdigest(), imported, batches, kind)


def _spoken(chat: Chat) -> Iterator[Batch]:
    """Yield batches of what one agent said to the other, before it was answered."""
    for (author, recipient), said in groupby(chat.said, lambda one: (one.author, one.recipient)):
        for batch in _batches([one.message for one in said]):
            yield Batch(batch.messages, author, recipient, CHANNEL)


def _batches(messages: list[dict[str, Any]]) -> Iterator[Batch]:
    pack = Codec().pack
    batch: list[dict[str, Any]] = []
    room = BATCH_BYTES
    for number, message in enumerate(messages, start=1):
        size = len(codec.encode_tree(pack(message)))
        if size > codec.PAYLOAD_MAX - RECORD_SLACK:
            reason = f"message {number} is {size:,} bytes, more than one record holds"
            raise UsageError(f"{reason}: shorten it in a copy of the file")
        if batch and (size > room or len(batch) == BATCH_MESSAGES):
            yield Batch(batch)
            batch, room = [], BATCH_BYTES
        batch.append(message)
        room -= size
    if batch:
        yield Batch(batch)


def look(store: Store | None, made: Plan) -> Seen:
    """Read through the session that a file goes into, if there is one."""
    if store is None:
        return Seen()
    try:
        session = store.resume(made.session)
    except NotFoundError:
        return Seen()
    with session:
        ids, end, messages = set(), 0, 0
        for record in session.records():
            messages += record.kind == Message.kind
            if record.id.startswith(made.id("")):
                ids.add(record.id)
                end = max(end, _end(record, made))
    own = sum(len(batch.messages) for at, batch in enumerate(made.batches) if made.id(at) in ids)
    return Seen(frozenset(ids), end, messages - own)


def _end(record: Record, made: Plan) -> int:
    return record.position if record.id == made.id("end") else 0


def carry_out(store: Store, made: Plan, seen: Seen) -> Generator[Step]:
    """Append what is not there yet, step by step."""
    with store.session(made.session) as session:
        for at, batch in enumerate(made.batches):
            if made.id(at) not in seen.ids:
                messages, author, recipient, channel = batch
                session.append(
                    *messages,
                    author=author,
                    recipient=recipient,
                    channel=channel,
                    origin=made.origin,
                    id=made.id(at),
                )
                yield Step(session.position, len(messages))
        for at, data in enumerate(_notes(made)):
            if made.id(f"note-{at}") not in seen.ids:
                session.note(data, author="perdure import", id=made.id(f"note-{at}"))
        end = session.note(_summary(made), author="perdure import", id=made.id("end"))
        yield Step(end, 0)


def _notes(made: Plan) -> Iterator[dict[str, Any]]:
    """Yield what goes into notes of its own: the text that is left over, and the repairs."""
    kept: list[dict[str, Any]] = []
    room = NOTE_BYTES
    for leftover in _pieces(made.imported.leftovers):
        if len(leftover.raw) > room:
            yield {"file": made.file, "leftovers": kept}
            kept, room = [], NOTE_BYTES
        kept.append(leftover._asdict())
        room -= len(leftover.raw)
    if kept:
        yield {"file": made.file, "leftovers": kept}
    repairs = [repair.as_dict() for repair in made.imported.repairs]
    for start in range(0, len(repairs), REPAIRS_NOTED):
        yield {"file": made.file, "repairs": repairs[start : start + REPAIRS_NOTED]}


def _pieces(leftovers: list[Leftover]) -> Iterator[Leftover]:
    for leftover in leftovers:
        for start in range(0, len(leftover.raw), NOTE_BYTES):
            yield leftover._replace(raw=leftover.raw[start : start + NOTE_BYTES])


def _summary(made: Plan) -> dict[str, Any]:
    imported = made.imported
    return {
        "file": made.file,
        "sha256": made.digest,
        "messages": len(imported.messages),
        "repairs": len(imported.repairs),
        "leftovers": len(imported.leftovers),
        "about": imported.about,
    }
