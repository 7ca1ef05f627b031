"""Plan and run an import: batches of messages, then notes, with ids from the file's digest.

The ids make an import idempotent: a killed import continues where it stopped when run again, and a
finished one adds nothing. Ids are looked up in the whole session, because a session itself
remembers only the last thousand. They are stored: do not change how they are made.
"""

from collections.abc import Generator, Iterator, Sequence
from hashlib import sha256
from itertools import groupby
from typing import Any, NamedTuple

from perdure.cli.import_.autogen import CHANNEL, AgentPair, ImportedChat, parse_chat
from perdure.cli.import_.messages import ImportedMessages, Leftover, parse_file
from perdure.cli.import_.openai_agents import KIND, SdkSession, is_opaque
from perdure.core.validation import require_session_id
from perdure.errors import DamagedError, NotFoundError, UsageError
from perdure.formats.intake import IncomingMessage
from perdure.journal import codec
from perdure.journal.codec import Codec
from perdure.journal.records import Message, Record
from perdure.safe_text import safe
from perdure.sync.store import Store

BATCH_MESSAGES = 500  # Messages; a batch is one atomic append, held in memory.

BATCH_BYTES = 4 * 2**20

NOTE_BYTES = 2**20  # Bytes of leftover text per note; a record holds 16 times as much, as JSON.

RECORD_SLACK = 4_096  # Bytes of a record besides its message.

REPAIRS_PER_NOTE = 5_000  # Repairs per note; each is a short line.


class ImportBatch(NamedTuple):
    """The messages of one append, with their author and recipient."""

    messages: list[dict[str, Any]]
    author: str = ""
    recipient: str = ""
    channel: str = ""
    opaque: bool = False


class ImportPlan(NamedTuple):
    """A parsed file, and the batches to append."""

    file: str
    session: str
    digest: str
    imported: ImportedMessages
    batches: list[ImportBatch]
    kind: str = ""
    """How the file was read; the same file can be imported in more than one way."""

    @property
    def origin(self) -> str:
        return f"import:{safe(self.file)}"

    def id(self, part: object) -> str:
        return f"import-{self.digest[:32]}-{self.kind}{part}"


class ImportStep(NamedTuple):
    """The position of the session after one append, and the messages it added."""

    position: int
    messages: int


class ExistingImport(NamedTuple):
    """The state of a session before an import.

    `ids` are the parts of the import it has, `end` is the position of a finished import (else 0),
    `others` counts the messages that are not of the import.
    """

    ids: frozenset[str] = frozenset()
    end: int = 0
    others: int = 0


def plan_import(
    file: str, data: bytes, session: str, *, autogen: bool = False, agents: AgentPair | None = None
) -> ImportPlan:
    """Parse a file and split its messages into batches; the same bytes give the same batches.

    With `autogen`, the file is the chat history of one agent of a pair: each message has an author.
    """
    try:
        require_session_id(session)
    except UsageError as error:
        raise UsageError(f"{error}: give --session with another one") from error
    imported = parse_file(data)
    if autogen:
        chat = parse_chat(imported, agents)
        imported, batches = chat.imported, [*_chat_batches(chat)]
    else:
        batches = [*_split_batches(imported.messages)]
    kind = f"{CHANNEL}-" if autogen else ""
    return ImportPlan(file, session, sha256(data).hexdigest(), imported, batches, kind)


def plan_database(file: str, sessions: Sequence[SdkSession]) -> Iterator[ImportPlan]:
    """Yield a plan for each session of a database of the OpenAI Agents SDK."""
    for session in sessions:
        require_session_id(session.id)
        digest = sha256("\n".join([session.id, *session.rows]).encode("utf-8", "replace"))
        batches = [
            ImportBatch(batch.messages, opaque=opaque)
            for opaque, items in groupby(session.imported.messages, is_opaque)
            for batch in _split_batches([*items])
        ]
        yield ImportPlan(file, session.id, digest.hexdigest(), session.imported, batches, KIND)


def _chat_batches(chat: ImportedChat) -> Iterator[ImportBatch]:
    """Yield batches of consecutive messages from one agent to the other."""
    for (author, recipient), items in groupby(
        chat.messages, lambda item: (item.author, item.recipient)
    ):
        for batch in _split_batches([item.message for item in items]):
            yield ImportBatch(batch.messages, author, recipient, CHANNEL)


def _split_batches(messages: list[dict[str, Any]]) -> Iterator[ImportBatch]:
    pack = Codec().pack
    batch: list[dict[str, Any]] = []
    room = BATCH_BYTES
    for number, message in enumerate(messages, start=1):
        size = len(codec.encode_tree(pack(message)))
        if size > codec.PAYLOAD_MAX - RECORD_SLACK:
            reason = f"message {number} is {size:,} bytes, more than one record holds"
            raise UsageError(f"{reason}: shorten it in a copy of the file")
        if batch and (size > room or len(batch) == BATCH_MESSAGES):
            yield ImportBatch(batch)
            batch, room = [], BATCH_BYTES
        batch.append(message)
        room -= size
    if batch:
        yield ImportBatch(batch)


def find_existing(store: Store | None, file_plan: ImportPlan) -> ExistingImport:
    """Read the session that a file goes into, if it exists."""
    if store is None:
        return ExistingImport()
    try:
        session = store.resume(file_plan.session)
    except NotFoundError:
        return ExistingImport()
    with session:
        ids, end, messages = set(), 0, 0
        for record in session.records():
            messages += record.kind == Message.kind
            if record.id.startswith(file_plan.id("")):
                ids.add(record.id)
                end = max(end, _end_position(record, file_plan))
    own = sum(
        len(batch.messages)
        for index, batch in enumerate(file_plan.batches)
        if file_plan.id(index) in ids
    )
    return ExistingImport(frozenset(ids), end, messages - own)


def _end_position(record: Record, file_plan: ImportPlan) -> int:
    return record.position if record.id == file_plan.id("end") else 0


def run_import(
    store: Store, file_plan: ImportPlan, existing: ExistingImport
) -> Generator[ImportStep]:
    """Append the missing parts, one append per step."""
    with store.session(file_plan.session) as session:
        for index, batch in enumerate(file_plan.batches):
            if file_plan.id(index) not in existing.ids:
                messages, author, recipient, channel, opaque = batch
                stored = [IncomingMessage(message, {}) for message in messages]
                session.append(
                    *(messages if opaque else stored),
                    author=author,
                    recipient=recipient,
                    channel=channel,
                    origin=file_plan.origin,
                    id=file_plan.id(index),
                    opaque=opaque,
                )
                yield ImportStep(session.position, len(messages))
        for index, data in enumerate(_note_contents(file_plan)):
            if file_plan.id(f"note-{index}") not in existing.ids:
                session.note(data, author="perdure import", id=file_plan.id(f"note-{index}"))
        end = session.note(
            _import_summary(file_plan), author="perdure import", id=file_plan.id("end")
        )
        yield ImportStep(end, 0)


def require_equal(store: Store, file_plan: ImportPlan) -> None:
    """Read back what was imported, and raise DamagedError unless it equals the file."""
    with store.resume(file_plan.session) as session:
        contents = [record.content for record in session.records(kinds=[Message.kind])]
    stored = [
        content.message
        for content in contents
        if isinstance(content, Message) and content.origin == file_plan.origin
    ]
    if stored[-len(file_plan.imported.messages) :] != file_plan.imported.messages:
        reason = f"what was imported from {safe(file_plan.file)} is not what the file holds"
        raise DamagedError(file_plan.session, 0, reason)


def _note_contents(file_plan: ImportPlan) -> Iterator[dict[str, Any]]:
    """Yield the contents of the notes: leftover text, then repairs."""
    kept: list[dict[str, Any]] = []
    room = NOTE_BYTES
    for leftover in _split_leftovers(file_plan.imported.leftovers):
        if len(leftover.raw) > room:
            yield {"file": file_plan.file, "leftovers": kept}
            kept, room = [], NOTE_BYTES
        kept.append(leftover._asdict())
        room -= len(leftover.raw)
    if kept:
        yield {"file": file_plan.file, "leftovers": kept}
    repairs = [repair.as_dict() for repair in file_plan.imported.repairs]
    for start in range(0, len(repairs), REPAIRS_PER_NOTE):
        yield {"file": file_plan.file, "repairs": repairs[start : start + REPAIRS_PER_NOTE]}


def _split_leftovers(leftovers: list[Leftover]) -> Iterator[Leftover]:
    for leftover in leftovers:
        for start in range(0, len(leftover.raw), NOTE_BYTES):
            yield leftover._replace(raw=leftover.raw[start : start + NOTE_BYTES])


def _import_summary(file_plan: ImportPlan) -> dict[str, Any]:
    imported = file_plan.imported
    return {
        "file": file_plan.file,
        "sha256": file_plan.digest,
        "messages": len(imported.messages),
        "repairs": len(imported.repairs),
        "leftovers": len(imported.leftovers),
        "about": imported.about,
    }
