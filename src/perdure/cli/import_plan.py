"""Plan and run an import: batches of messages, then notes, with ids from the file's digest.

The ids make an import idempotent: a killed import continues where it stopped when run again, and a
finished one adds nothing. Ids are looked up in the whole session, because a session itself
remembers only the last thousand. They are stored: do not change how they are made.
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

BATCH_MESSAGES = 500  # Messages; a batch is one atomic append, held in memory.
BATCH_BYTES = 4 * 2**20
NOTE_BYTES = 2**20  # Bytes of leftover text per note; a record holds 16 times as much, as JSON.
RECORD_SLACK = 4_096  # Bytes of a record besides its message.
REPAIRS_NOTED = 5_000  # Repairs per note; each is a short line.


class Batch(NamedTuple):
    """The messages of one append, with their author and recipient."""

    messages: list[dict[str, Any]]
    author: str = ""
    recipient: str = ""
    channel: str = ""


class Plan(NamedTuple):
    """A parsed file, and the batches to append."""

    file: str
    session: str
    digest: str
    imported: Imported
    batches: list[Batch]
    kind: str = ""
    """How the file was read; the same file can be imported in more than one way."""

    @property
    def origin(self) -> str:
        return f"import:{safe(self.file)}"

    def id(self, part: object) -> str:
        return f"import-{self.digest[:32]}-{self.kind}{part}"


class Step(NamedTuple):
    """The position of the session after one append, and the messages it added."""

    position: int
    messages: int


class Seen(NamedTuple):
    """The state of a session before an import.

    `ids` are the parts of the import it has, `end` is the position of a finished import (else 0),
    `others` counts the messages that are not of the import.
    """

    ids: frozenset[str] = frozenset()
    end: int = 0
    others: int = 0


def plan(
    file: str, data: bytes, session: str, *, autogen: bool = False, agents: Pair | None = None
) -> Plan:
    """Parse a file and split its messages into batches; the same bytes give the same batches.

    With `autogen`, the file is the chat history of one agent of a pair: each message has an author.
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
    """Yield batches of consecutive messages from one agent to the other."""
    for (author, recipient), items in groupby(
        chat.messages, lambda item: (item.author, item.recipient)
    ):
        for batch in _batches([item.message for item in items]):
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


def look(store: Store | None, file_plan: Plan) -> Seen:
    """Read the session that a file goes into, if it exists."""
    if store is None:
        return Seen()
    try:
        session = store.resume(file_plan.session)
    except NotFoundError:
        return Seen()
    with session:
        ids, end, messages = set(), 0, 0
        for record in session.records():
            messages += record.kind == Message.kind
            if record.id.startswith(file_plan.id("")):
                ids.add(record.id)
                end = max(end, _end(record, file_plan))
    own = sum(
        len(batch.messages)
        for index, batch in enumerate(file_plan.batches)
        if file_plan.id(index) in ids
    )
    return Seen(frozenset(ids), end, messages - own)


def _end(record: Record, file_plan: Plan) -> int:
    return record.position if record.id == file_plan.id("end") else 0


def carry_out(store: Store, file_plan: Plan, existing: Seen) -> Generator[Step]:
    """Append the missing parts, one append per step."""
    with store.session(file_plan.session) as session:
        for index, batch in enumerate(file_plan.batches):
            if file_plan.id(index) not in existing.ids:
                messages, author, recipient, channel = batch
                session.append(
                    *messages,
                    author=author,
                    recipient=recipient,
                    channel=channel,
                    origin=file_plan.origin,
                    id=file_plan.id(index),
                )
                yield Step(session.position, len(messages))
        for index, data in enumerate(_notes(file_plan)):
            if file_plan.id(f"note-{index}") not in existing.ids:
                session.note(data, author="perdure import", id=file_plan.id(f"note-{index}"))
        end = session.note(_summary(file_plan), author="perdure import", id=file_plan.id("end"))
        yield Step(end, 0)


def _notes(file_plan: Plan) -> Iterator[dict[str, Any]]:
    """Yield the contents of the notes: leftover text, then repairs."""
    kept: list[dict[str, Any]] = []
    room = NOTE_BYTES
    for leftover in _pieces(file_plan.imported.leftovers):
        if len(leftover.raw) > room:
            yield {"file": file_plan.file, "leftovers": kept}
            kept, room = [], NOTE_BYTES
        kept.append(leftover._asdict())
        room -= len(leftover.raw)
    if kept:
        yield {"file": file_plan.file, "leftovers": kept}
    repairs = [repair.as_dict() for repair in file_plan.imported.repairs]
    for start in range(0, len(repairs), REPAIRS_NOTED):
        yield {"file": file_plan.file, "repairs": repairs[start : start + REPAIRS_NOTED]}


def _pieces(leftovers: list[Leftover]) -> Iterator[Leftover]:
    for leftover in leftovers:
        for start in range(0, len(leftover.raw), NOTE_BYTES):
            yield leftover._replace(raw=leftover.raw[start : start + NOTE_BYTES])


def _summary(file_plan: Plan) -> dict[str, Any]:
    imported = file_plan.imported
    return {
        "file": file_plan.file,
        "sha256": file_plan.digest,
        "messages": len(imported.messages),
        "repairs": len(imported.repairs),
        "leftovers": len(imported.leftovers),
        "about": imported.about,
    }
