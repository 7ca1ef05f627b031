"""A batch that failed: what that means for each append in it.

One stream may be damaged or locked, and the others know nothing of it. So each append of the batch
goes once more, alone, and is answered for itself. Only a store that is away as a whole is not
asked again for each: that would be waited for as often as there are sessions.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from perdure.errors import PerdureError, UnavailableError, UsageError

Turn = TypeVar("Turn")


class Parting(Generic[Turn]):
    """Stands in place of an outcome: this append goes alone. All of one batch share it.

    They take turns, so that nobody asks a store that was found to be away. Where the batch waited
    for something in vain, each may have to wait as long, and then they do it at the same time:
    `turn` makes what is held while one is sent.
    """

    __slots__ = ("_away", "_part", "error", "turn")

    def __init__(
        self,
        error: Exception,
        size: int,
        turn: Callable[[], Turn],
        part: "Callable[[Parting[Turn], Any, Any], object]" = lambda *_: None,
    ) -> None:
        self.error = error
        self._away = error if size == 1 else None  # One that went alone has its answer.
        waits = isinstance(error, UnavailableError)
        self.turn: Turn | contextlib.nullcontext[None] = (
            contextlib.nullcontext() if waits else turn()
        )
        self._part = part

    def part(self, append: Any, waiter: Any) -> None:
        """Have an append sent for somebody who waits for its answer, other than a thread."""
        self._part(self, append, waiter)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Send one append in this block, unless it would be in vain."""
        if self._away is not None:
            raise for_another(self._away)
        try:
            yield
        except UsageError:
            if isinstance(self.error, UsageError):
                raise
            # It was closed meanwhile; what became of the first try is unknown.
            raise for_another(self.error) from None
        except UnavailableError as error:
            if is_away(error):
                self._away = error
            raise


def is_away(error: BaseException) -> bool:
    """Tell whether an error is about the whole store, so that nobody else has a better chance."""
    return isinstance(error, UnavailableError) and not error.of_one


def sets_apart(error: Exception) -> bool:
    """Tell whether the next append of the same stream should not join others."""
    return not (is_away(error) or isinstance(error, UsageError))


def for_another(error: BaseException) -> BaseException:
    """Return an error of its own for somebody who waited, with the first one as its cause."""
    if isinstance(error, PerdureError):
        copy: BaseException = type(error)(*error.args)
        vars(copy).update(vars(error))
    else:
        copy = UnavailableError("the commit", f"it was interrupted by {type(error).__name__}")
    copy.__cause__ = error
    return copy
