"""What all sessions of a store have in common, given once when it is opened. Pure."""

from collections.abc import Callable
from typing import NamedTuple

from perdure import journal
from perdure.cipher import Cipher
from perdure.codec import Codec
from perdure.errors import UsageError
from perdure.fold import GENERATED
from perdure.tokens import Counter


class Settings(NamedTuple):
    """What all sessions of a store share. `token` makes unique text, `clock` tells the time."""

    clock: Callable[[], float]
    token: Callable[[], str]
    cipher: Cipher
    codec: Codec
    tenant: str = ""
    verify_writes: bool = False
    counter: Counter | None = None
    """Counts the tokens of messages as they are stored; None leaves that to whoever asks."""

    def new_id(self) -> str:
        return GENERATED + self.token()

    def now(self) -> str:
        """Return the time as headers carry it; a clock that tells none is UsageError."""
        try:
            return journal.timestamp(self.clock())
        except Exception as error:
            raise UsageError(f"the clock given to `open` tells no time: {error!r}") from error
