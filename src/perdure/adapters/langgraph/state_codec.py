"""Convert the values of a graph's state to plain JSON trees, and back.

In: whatever a channel or a write holds. Out: None, booleans, numbers, texts, lists and dicts, as
they are; LangChain's messages as `messages` stores them; every other object as bytes of LangGraph's
own serializer, in a tagged dict. As with LangGraph's own savers, a tuple comes back as a list.

An object comes back only if its class is one of LangGraph's safe ones, or was allowed by the
caller. Other classes are refused when they are stored, so that nothing comes back as less than it
was. Nothing is imported because stored data names it.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import ormsgpack
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde import _msgpack as safe_types
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from perdure.adapters.langgraph import messages
from perdure.errors import UsageError

TAG = "~"  # The only key of a dict that stands for an object.
MESSAGE = "message"

_PLAIN = frozenset({str, int, float, bool, type(None)})
_WITHOUT_CLASS = frozenset({6, 7})  # Extension types of LangGraph's serializer: arrays, snapshots.


def make_serde(allow: Iterable[type | tuple[str, str]]) -> Any:
    """Return LangGraph's serializer, which builds only its safe classes and those allowed."""
    return JsonPlusSerializer(allowed_msgpack_modules=tuple(allow) or None)


class StateCodec:
    """Encodes and decodes the values of one saver."""

    def __init__(self, serde: Any) -> None:
        self._serde = serde

    def encode(self, value: Any, path: str) -> Any:
        """Return a value as a JSON tree; UsageError, with its path, if it cannot be stored."""
        kind = type(value)
        if kind in _PLAIN:
            if kind is str and not value.isascii() and not _is_unicode(value):
                return self._encode_object(value, path)
            if kind is float and (value != value or value in (_INFINITE, -_INFINITE)):  # noqa: PLR0124
                return self._encode_object(value, path)
            return value
        if kind is list or kind is tuple:
            return [self.encode(item, path) for item in value]
        if kind is dict:
            if TAG in value or not all(type(key) is str for key in value):
                return self._encode_object(value, path)
            return {key: self.encode(item, f"{path}.{key}") for key, item in value.items()}
        if isinstance(value, BaseMessage) and (stored := self.encode_message(value, path)):
            return {TAG: [MESSAGE, stored]}
        return self._encode_object(value, path)

    def encode_message(self, message: Any, path: str) -> dict[str, Any] | None:
        """Return a message as stored, or None if its class is not one of LangChain's own."""
        return messages.to_stored(message, lambda value: self.encode(value, path))

    def _encode_object(self, value: Any, path: str) -> dict[str, Any]:
        try:
            tag, data = self._serde.dumps_typed(value)
        except Exception as error:
            kind = type(value).__qualname__
            raise UsageError(f"{path}: a {kind} cannot be stored: return plain data") from error
        if tag == "msgpack":
            self._require_allowed(data, path)
        return {TAG: [tag, b64encode(data).decode()]}

    def _require_allowed(self, data: bytes, path: str) -> None:
        """Raise UsageError if an object could not be built again, because of its class."""
        named: list[tuple[str, str]] = []

        def note(code: int, inner: bytes) -> None:
            tree = ormsgpack.unpackb(inner, ext_hook=note, option=ormsgpack.OPT_NON_STR_KEYS)
            if code not in _WITHOUT_CLASS:
                named.append((tree[0], tree[1]))

        ormsgpack.unpackb(data, ext_hook=note, option=ormsgpack.OPT_NON_STR_KEYS)
        allowed = getattr(self._serde, "_allowed_msgpack_modules", None)
        for module, name in named if allowed is not True else ():
            if (module, name) not in safe_types.SAFE_MSGPACK_TYPES | (allowed or set()):
                problem = f"{path}: the class {module}.{name} is not allowed in a checkpoint"
                raise UsageError(f"{problem}: allow it: PerdureSaver(..., allow=[{name}])")

    def decode(self, tree: Any) -> Any:
        """Return the value of a tree. Every call builds new objects."""
        kind = type(tree)
        if kind is list:
            return [self.decode(item) for item in tree]
        if kind is not dict:
            return tree
        if TAG not in tree:
            return {key: self.decode(item) for key, item in tree.items()}
        tag, data = tree[TAG]
        if tag == MESSAGE:
            return messages.to_message(data, self.decode)
        return self._serde.loads_typed((tag, b64decode(data)))


_INFINITE = float("inf")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def encoded(tree: Any) -> bytes:
    """Return a tree as bytes, to compare with: 1, 1.0 and True are different."""
    return msgspec.json.encode(tree)


def common_prefix(before: Sequence[bytes], after: Sequence[bytes]) -> int:
    """Return how many items two lists have in common at their beginning."""
    if before == after[: len(before)]:
        return len(before)
    pairs = zip(before, after, strict=False)
    return next((at for at, (old, new) in enumerate(pairs) if old != new), len(after))
