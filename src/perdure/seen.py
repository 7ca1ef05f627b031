"""The properties of a session that need no I/O, shared by `Session` and `AsyncSession`. Pure."""

from typing import Any

from perdure import views
from perdure.leases import leasing
from perdure.leases.tenure import Holder
from perdure.replica import Replica


class Seen:
    """Properties of a session's current view."""

    _replica: Replica

    @property
    def id(self) -> str:
        """The session's id, as passed to the store."""
        return self._replica.name

    @property
    def position(self) -> int:
        """The position of the newest record in this view, 0 in a new session."""
        return self._replica.tip.position

    @property
    def last(self) -> dict[str, Any] | None:
        """The newest message in this view, or None."""
        return views.last_message(self._replica)

    @property
    def labels(self) -> frozenset[str]:
        """The session's labels: the caller's own, and those that perdure sets for its state."""
        return self._replica.state.head_labels

    @property
    def holder(self) -> Holder | None:
        """The holder of the session's lease in this view, or None; the lease may have expired."""
        return leasing.holder(self._replica)

    def __len__(self) -> int:
        """The number of messages in this view."""
        return self._replica.state.messages

    def __bool__(self) -> bool:
        """A session is true, even without messages."""
        return True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r}: {len(self)} messages, at {self.position}>"
