"""Who holds a session: what the record says, and what the holder believes. Pure.

A record says which epoch stands and where it was renewed last. A holder believes in its epoch for
`ttl` seconds, counted from when it sent the newest renewal that was stored; others count from when
they read that renewal, which was later. So a holder stops before anybody takes over, and if it does
not, because its process slept, its write comes second and is refused by position.
"""

from collections.abc import Callable
from typing import NamedTuple

from perdure.errors import FencedError, LeaseHeldError
from perdure.leases.records import LeaseChange, LeaseTaken

DELETED = "the session was deleted"


class Tenure(NamedTuple):
    """The newest lease of a session. `owner` is empty once it was released."""

    epoch: int
    owner: str
    ttl: float
    who: str
    renewed: int
    """The position of the record by which it was taken or renewed last."""


class Holder(NamedTuple):
    """Who holds a session, for people and programs. `here` means this very handle."""

    epoch: int
    who: str
    ttl: float
    here: bool


def taken(position: int, content: LeaseTaken) -> Tenure:
    """Take in that somebody holds the session."""
    return Tenure(content.epoch, content.owner, content.ttl, content.who, position)


def renewed(tenure: Tenure | None, position: int, content: LeaseChange) -> Tenure | None:
    """Take in a renewal; one that came too late says nothing."""
    if tenure is None or (tenure.epoch, tenure.owner) != (content.epoch, content.owner):
        return tenure
    return tenure._replace(renewed=position)


def released(tenure: Tenure | None, content: LeaseChange) -> Tenure | None:
    """Take in that the holder let go. The epoch stays: the next one counts on from it."""
    if tenure is None or (tenure.epoch, tenure.owner) != (content.epoch, content.owner):
        return tenure
    return tenure._replace(owner="")


class Holding:
    """A lease as the handle that takes it sees it. Once it is lost, it stays lost.

    `now` is a monotonic clock, `here` whether this is the process that took it, and `on_loss` is
    called once, when it turns out that it was lost.
    """

    def __init__(
        self,
        owner: str,
        ttl: float,
        earlier: "Holding | None" = None,
        *,
        now: Callable[[], float],
        here: Callable[[], bool],
        on_loss: Callable[[FencedError], None],
    ) -> None:
        self.owner = owner
        self.ttl = ttl
        self.epoch = 0
        self.busy = True
        """Whether it is being taken, or was taken and not given back yet."""
        self.active = False
        """Whether it was taken and not given back yet, lost or not."""
        self.here = here
        self.own = frozenset({owner})
        """The owners by which this handle may hold the session without having learnt of it."""
        if earlier is not None and earlier.here():
            self.own |= earlier.own
        self._now = now
        self._on_loss = on_loss
        self._until = 0.0
        self.loss: FencedError | None = None
        """Why it is lost, once it is."""

    def take(self, epoch: int, sent: float) -> None:
        """Begin to believe. `sent` is when the write began by which it was taken."""
        self.epoch, self._until, self.active = epoch, sent + self.ttl, True

    def end(self) -> bool:
        """Stop relying on it; True the first time."""
        was, self.busy, self.active = self.active, False, False
        return was

    def left(self) -> float:
        """For how many seconds this handle believes in it."""
        return max(self._until - self._now(), 0.0)

    def renew(self, sent: float) -> None:
        """Go on believing: a renewal that was sent then is durable."""
        self._until = max(self._until, sent + self.ttl)

    def owns(self, tenure: Tenure) -> bool:
        """Whether it is this handle that the record calls the holder.

        What it took without learning of it, or could not give back, binds only the others.
        """
        return tenure.owner in self.own and self.here()

    def lose(self, loss: FencedError) -> FencedError:
        """Stop believing. The first reason stays."""
        if self.loss is None:
            self.loss = loss
            self._on_loss(loss)
        return self.loss

    def fenced(self, name: str, tenure: Tenure | None) -> FencedError | None:
        """Return why the holder must not write any more, or None if it may."""
        if self.loss is not None:
            return FencedError(*self.loss.args)
        if not self.here():  # Nothing is lost: the process that took it holds it.
            return FencedError(name, self.epoch, 0, "", "this process is a fork of its holder")
        if tenure is None:
            return self.lose(FencedError(name, self.epoch, 0, "", DELETED))
        if tenure.epoch != self.epoch or tenure.owner != self.owner:
            return self.lose(FencedError(name, self.epoch, tenure.epoch, tenure.who))
        if not self.left():
            reason = f"no renewal was stored for {self.ttl:g} s"
            return self.lose(FencedError(name, self.epoch, 0, "", reason))
        return None


def barred(
    name: str, tenure: Tenure | None, holding: Holding | None
) -> FencedError | LeaseHeldError | None:
    """Return why a handle may write only what is open to all, or None if it may write anything."""
    if holding is not None and holding.active:
        return holding.fenced(name, tenure)
    if tenure is None or not tenure.owner:
        return None
    if holding is not None and holding.owns(tenure):
        return None
    return held_error(name, tenure)


def held_error(name: str, tenure: Tenure) -> LeaseHeldError:
    return LeaseHeldError(name, tenure.epoch, tenure.who, tenure.ttl, tenure.renewed)
