"""The items of a session in memory: loaded once, then kept up to date with what is appended.

Items are the SDK's: dicts in the input format of the Responses API. Messages that another framework
stored in the same session are converted to it. Nothing here writes.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from perdure import AsyncSession
from perdure.formats.intake import copy_data
from perdure.formats.tool_calls import answers, open_calls
from perdure.journal.records import Message, MessagesReplaced, MessagesRetracted

Item = dict[str, Any]

FORMAT = "openai.responses"

NO_ID = "__fake_id__"  # The SDK's id for items of providers that have none.

_ROLES = frozenset({"user", "assistant", "system", "developer"})
_PLAIN_FIELDS = 2
_CHAT_FIELDS = frozenset({"tool_calls", "function_call", "tool_call_id", "parts", "name"})
_PARTS = frozenset(
    {"input_text", "input_image", "input_file", "input_audio", "output_text", "refusal"}
)
# Items that the application adds, or that begin something new: they are no part of an answer.
_NOT_ANSWERS = frozenset({"message", "reasoning", "compaction", "item_reference"})

KINDS = (Message.kind, MessagesRetracted.kind, MessagesReplaced.kind)


def is_item(message: Item) -> bool:
    """Return whether a stored message is an item as the SDK has it, of no other format."""
    if _is_plain(message):
        return True
    kind = message.get("type")
    if type(kind) is str and kind != "message":
        return True
    if message.get("role") not in _ROLES or not _CHAT_FIELDS.isdisjoint(message):
        return kind is None and "role" not in message  # An opaque item, such as an encrypted one.
    content = message.get("content")
    return type(content) is str or (
        type(content) is list
        and all(type(part) is dict and part.get("type") in _PARTS for part in content)
    )


def _is_plain(message: Item) -> bool:
    """Return whether a message has only a role and a text, as most have."""
    return (
        len(message) == _PLAIN_FIELDS
        and type(message.get("content")) is str
        and message.get("role") in _ROLES
    )


def is_opaque(item: Item) -> bool:
    """Return whether an item is in no format that perdure knows."""
    return "role" not in item and type(item.get("type")) is not str


def is_output(item: Item) -> bool:
    """Return whether an item is the output of a call."""
    return "output" in item and "call_id" in item


def _is_deep(item: Item) -> bool:
    return not _is_plain(item) and any(type(value) in (list, dict) for value in item.values())


def is_same_item(item: Item, other: Item) -> bool:
    """Return whether two items are versions of one: the same call, output or answer."""
    if item.get("type") != other.get("type") or item.get("role") != other.get("role"):
        return False
    for name in ("call_id", "id"):
        own, others = item.get(name), other.get(name)
        if own and others and NO_ID not in (own, others):
            return bool(own == others)
    return _without_id(item) == _without_id(other)


def _without_id(item: Item) -> Item:
    return {name: value for name, value in item.items() if name != "id"}


def cut_items(items: Sequence[Item], limit: int) -> list[Item]:
    """Return at most the last `limit` items, beginning where no provider misses what was cut.

    An output is never without its call, an answer never without the reasoning that led to it.
    """
    start = max(len(items) - limit, 0) if limit > 0 else len(items)
    if start == 0:
        return [*items]
    # From the user's message before the cut: everything older is complete.
    at = next((at for at in range(start, -1, -1) if items[at : at + 1] and _is_input(items[at])), 0)
    pending: set[str] = set()
    reasons = False  # Whether the answer at this place began with reasoning.
    for index in range(at, len(items)):
        item = items[index]
        is_output = bool(answers(item))
        is_answer = not (is_output or _is_input(item))
        if index >= start and not pending and not is_output and not (reasons and is_answer):
            return [*items[index:]]
        pending.difference_update(answers(item))
        pending.update(call.id for call in open_calls(item))
        reasons = is_answer and (reasons or item.get("type") == "reasoning")
    return []


def _is_input(item: Item) -> bool:
    return item.get("role") in ("user", "system", "developer")


class SessionItems:
    """The items of one session, as of the last `refresh`."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._items: list[Item] = []
        self._deep: list[bool] = []  # Whether the item at this index holds lists or dicts.
        self._order: dict[str, int] = {}  # The calls by their ids, in the order of the model.
        self._outputs: dict[str, bool | None] = {}  # The calls that have an output.
        self._seen = -1  # The position up to which the items are known; -1 before the first load.
        self._last = 0  # The position of the last item, 0 if it is not known.
        self._is_converted = False
        self.losses: tuple[Any, ...] = ()
        """Content of other frameworks' messages that the items lack: positions and sentences."""

    async def refresh(self) -> None:
        """Apply what was stored since, by any writer."""
        session = self._session
        await session.refresh()
        # Tasks share a session: whatever is read here counts only if no other task applied more.
        while self._seen != (position := session.position):
            seen = self._seen
            if seen < 0:
                await self._load()
                continue
            contents = [
                record.content
                async for record in session.records(after=seen, kinds=KINDS)
                if record.position <= position
            ]
            messages = [content for content in contents if isinstance(content, Message)]
            if len(messages) < len(contents) or any(
                content.interrupted or not is_item(content.message) for content in messages
            ):
                await self._load()
            elif self._seen == seen:
                self._add([content.message for content in messages])
                self._seen, self._last = position, 0 if messages else self._last

    async def _load(self) -> None:
        session = self._session
        position, messages = session.position, await session.messages()
        is_converted = not all(map(is_item, messages))
        if is_converted:
            messages = await session.messages(format=FORMAT)
        if session.position != position:
            return  # Another task wrote meanwhile: the caller looks again.
        self._items, self._deep, self._order, self._outputs, self._last = [], [], {}, {}, 0
        self._is_converted, self.losses = is_converted, messages.losses
        self._add(messages)
        self._seen = position

    def _add(self, items: Sequence[Item]) -> None:
        start = len(self._items)
        self._items += items
        self._deep += [_is_deep(item) for item in items]
        for index, item in enumerate(items, start):
            if "call_id" in item:
                self._note_call(index, item)
        if None in self._outputs.values():
            self._drop_notices()

    def _note_call(self, index: int, item: Item) -> None:
        """Note a call, or put an output where it belongs."""
        id = item["call_id"]
        if not is_output(item):
            self._order[id] = len(self._order)
            return
        # None: there are two. The older one only says that the call was interrupted.
        self._outputs[id] = None if id in self._outputs else True
        self._move_output(index)

    def _drop_notices(self) -> None:
        """Put outputs in the place of notices about their calls, which a run closed before."""
        for id in [id for id, one in self._outputs.items() if one is None]:
            at = [
                i for i, item in enumerate(self._items) if is_output(item) and item["call_id"] == id
            ]
            self._items[at[0]], self._deep[at[0]] = self._items[at[-1]], self._deep[at[-1]]
            for index in reversed(at[1:]):
                del self._items[index], self._deep[index]
            self._outputs[id], self._last = True, 0

    def _move_output(self, index: int) -> None:
        """Put an output in the order of the calls: tools that run side by side end in any order.

        The SDK sends them in the order of the calls, and a provider's cache wants them unchanged.
        """
        items, deep = self._items, self._deep
        place = self._order.get(items[index]["call_id"], -1)
        while index and is_output(items[index - 1]):
            if self._order.get(items[index - 1]["call_id"], -1) <= place:
                return
            items[index - 1 : index + 1] = items[index], items[index - 1]
            deep[index - 1 : index + 1] = deep[index], deep[index - 1]
            index -= 1

    def note_appended(self, items: Sequence[Item], position: int, before: int) -> None:
        """Note items that this handle appended, if they are the last records of the session.

        `before` is the position of the session before that. What was not seen is not skipped.
        """
        is_alone = position == before + len(items) == self._session.position
        if before == self._seen and is_alone and not self._is_converted:
            self._add([copy_data(item, objects=True) for item in items])
            # Outputs are moved, so the last item may be another one.
            is_last = self._items[-1] == items[-1] and not is_output(items[-1])
            self._seen, self._last = position, position if is_last else 0

    def note_popped(self) -> None:
        """Note that the last item was taken back, by the newest record."""
        if self._seen == self._session.position - 1 and not self._is_converted:
            self._outputs.pop(self._items.pop().get("call_id", ""), None)
            self._deep.pop()
            self._seen, self._last = self._session.position, 0

    def __len__(self) -> int:
        return len(self._items)

    def copy(self, limit: int | None = None) -> list[Item]:
        """Return copies of the items, or of the newest ones as `cut_items` chooses them."""
        if limit is not None:
            return [copy_data(item, objects=True) for item in cut_items(self._items, limit)]
        return [
            copy_data(item, objects=True) if deep else item.copy()
            for item, deep in zip(self._items, self._deep, strict=True)
        ]

    @property
    def seen(self) -> int:
        """The position of the session up to which the items are known."""
        return self._seen

    def last(self) -> Item | None:
        """Return a copy of the newest item, or None."""
        return copy_data(self._items[-1], objects=True) if self._items else None

    async def stored(self) -> list["PlacedItem"]:
        """Return the items as they are stored, in the order of their places."""
        stored: list[PlacedItem] = []
        async for record in self._session.records(kinds=KINDS):
            content = record.content
            if isinstance(content, Message):
                stored.append(PlacedItem(content.message, record.position, record.position))
            elif isinstance(content, MessagesRetracted):
                stored = [item for item in stored if not item.is_hidden_by(content)]
            elif isinstance(content, MessagesReplaced):
                stored = _replaced(stored, content)
        return stored

    async def last_position(self) -> int:
        """Return the position of the last item, 0 if there is none."""
        if self._last or not self._items:
            return self._last
        hiding: list[MessagesRetracted | MessagesReplaced] = []
        newest = 0
        async for record in self._session.records(kinds=KINDS, reverse=True):
            content = record.content
            if not isinstance(content, Message):
                hiding.append(content)  # type: ignore[arg-type] # one of the other `KINDS`
            elif not any(_hides(each, record.position) for each in hiding):
                newest = newest or record.position
                if content.message == self._items[-1]:
                    return record.position
        return newest  # It was converted, so that no message equals it.


def _hides(content: "MessagesRetracted | MessagesReplaced", position: int) -> bool:
    if isinstance(content, MessagesReplaced):
        return content.first <= position <= content.last
    return PlacedItem({}, position, position).is_hidden_by(content)


class PlacedItem(NamedTuple):
    """An item, its position, and its place: the position of what it replaced, or its own."""

    item: Item
    position: int
    place: int

    def is_hidden_by(self, content: MessagesRetracted) -> bool:
        """Return whether a record takes the item back."""
        return self.position in content.positions or any(
            first <= self.place <= last for first, last in content.ranges
        )


def _replaced(stored: list[PlacedItem], content: MessagesReplaced) -> list[PlacedItem]:
    """Return items in order, after some took the place of others."""
    is_new = [content.new_first <= item.position <= content.new_last for item in stored]
    new = [
        item._replace(place=content.last) for item, new in zip(stored, is_new, strict=True) if new
    ]
    rest = [item for item, new in zip(stored, is_new, strict=True) if not new]
    before = [item for item in rest if item.place < content.first]
    return [*before, *new, *(item for item in rest if item.place > content.last)]
