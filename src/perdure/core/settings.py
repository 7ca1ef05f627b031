"""The settings that all sessions of a store share, fixed when it is opened. Pure."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from perdure.backends.protocol import Head
from perdure.errors import UsageError
from perdure.formats.tokens import Counter, counter_for
from perdure.journal import chain, key_store
from perdure.journal.cipher import Cipher, PlainCipher, keyed
from perdure.journal.codec import Codec
from perdure.journal.ids import GENERATED_PREFIX, random_texts
from perdure.journal.large import PART_SIZE
from perdure.journal.requests import Steps
from perdure.journal.user_types import Types

if TYPE_CHECKING:
    from perdure.keys import MasterKey

PART_SIZE_MIN = 2**14  # bytes; smaller parts would be mostly headers

PART_SIZE_MAX = 8 * 2**20  # bytes; a part is read into memory whole


class SealOptions(NamedTuple):
    """How a store is to be opened: its master key, and whether its keys are in another store."""

    master: "MasterKey | None" = None
    elsewhere: bool = False


class Settings(NamedTuple):
    """Shared settings. `tokens` returns unique texts, `clock` the seconds since the epoch."""

    clock: Callable[[], float]
    tokens: Callable[[int], list[str]]
    cipher: Cipher
    codec: Codec
    tenant: str = ""
    verify_writes: bool = False
    counter: Counter | None = None
    """Counts the tokens of messages as they are stored; with None, readers count when needed."""
    part_size: int = PART_SIZE
    """The bytes of a stored part of a large body, at most. A body of this size is not loaded."""

    def token(self) -> str:
        """Return a unique text."""
        return self.tokens(1)[0]

    def new_id(self) -> str:
        """Return a new record id, marked as generated."""
        return GENERATED_PREFIX + self.token()

    def for_session(self) -> "Settings":
        """Return the settings of one session, which has data keys of its own if it is sealed."""
        if not self.cipher.is_placed:
            return self
        return self._replace(cipher=keyed(self.cipher).fresh())

    def head_labels(self, labels: frozenset[str]) -> frozenset[str]:
        """Return labels as the head of a stream has them: in a sealed store they are blinded."""
        return keyed(self.cipher).blind(labels) if self.cipher.is_placed else labels

    def reveal(self, head: Head) -> Head:
        """Return a head with its labels as callers gave them."""
        if not self.cipher.is_placed or not head.labels:
            return head
        return head._replace(labels=keyed(self.cipher).reveal(head.stream, head.labels))

    def require_key(self, stream: str) -> Steps[None]:
        """Make sure that new bodies of a stream have a key, which is durable on return."""
        if self.cipher.is_placed and not keyed(self.cipher).key_for(stream):
            yield from key_store.require_write_key(self.cipher, stream, time=self.now())

    def now(self) -> str:
        """Return the time in the format of headers; UsageError if the clock returns none."""
        return chain.now(self.clock)


def settings_of(
    types: Types | None,
    clock: Callable[[], float],
    *,
    verify_writes: bool,
    tokens: "str | Counter | None" = None,
    part_size: int = PART_SIZE,
) -> Settings:
    return Settings(
        clock=clock,
        tokens=random_texts,
        cipher=PlainCipher(),
        codec=Codec(types),
        verify_writes=verify_writes,
        counter=counter_for(tokens) if isinstance(tokens, str) else _require_counter(tokens),
        part_size=_require_part_size(part_size),
    )


def _require_part_size(size: object) -> int:
    if type(size) is not int or not PART_SIZE_MIN <= size <= PART_SIZE_MAX:
        raise UsageError(f"part_size must be an int from {PART_SIZE_MIN} to {PART_SIZE_MAX}")
    return size


def _require_counter(counter: "Counter | None") -> "Counter | None":
    if counter is not None and not (hasattr(counter, "name") and hasattr(counter, "count")):
        kind = type(counter).__name__
        raise UsageError(f"tokens must be the name of a model or a Counter, not {kind}")
    return counter
