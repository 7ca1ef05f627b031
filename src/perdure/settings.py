"""The settings that all sessions of a store share, fixed when it is opened. Pure."""

from collections.abc import Callable
from typing import NamedTuple

from perdure import journal
from perdure.cipher import Cipher
from perdure.codec import Codec
from perdure.errors import UsageError
from perdure.fold import GENERATED
from perdure.tokens import Counter


class Settings(NamedTuple):
    """Shared settings. `token` returns unique text, `clock` the seconds since the epoch."""

    clock: Callable[[], float]
    token: Callable[[], str]
    cipher: Cipher
    codec: Codec
    tenant: str = ""
    verify_writes: bool = False
    counter: Counter | None = None
    """Counts the tokens of messages as they are stored; with None, readers count when needed."""

    def new_id(self) -> str:
        """Return a new record id, marked as generated."""
        return GENERATED + self.token()

    def now(self) -> str:
        """Return the time in the format of headers; UsageError if the clock returns none."""
        try:
            return journal.timestamp(self.clock())
        except Exception as error:
            raise UsageError(f"clock= must return seconds since the epoch: {error!r}") from error
