"""What a session shows of its view without asking the store. The same for both colours. Pure."""

from typing import Any

from perdure import views
from perdure.leases import leasing
from perdure.leases.tenure import Holder
from perdure.replica import Replica


class Seen:
    """One session as a handle sees it."""

    _replica: Replica

    @property
    def id(self) -> str:
        """The session's id, as it was given."""
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
        """The labels on the session: its own, and the states that perdure marks."""
        return self._replica.fold.head_labels

    @property
    def holder(self) -> Holder | None:
        """Who holds the session's lease in this view, or None; its time may have passed."""
        return leasing.holder(self._replica)

    def __len__(self) -> int:
        """The number of messages in this view."""
        return self._replica.fold.messages

    def __bool__(self) -> bool:
        """A session is true, empty or not."""
        return True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r}: {len(self)} messages, at {self.position}>"
