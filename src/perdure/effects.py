"""Effects: what a session did, reached as `session.effects`. Its twin is in `effects_async`."""

from perdure import deed_views
from perdure.deed_views import Found
from perdure.handle import Handle
from perdure.tools import Done, NotDone

Listing = list[Found]


class Effects:
    """The tool and model calls of a session, and what became of them."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def list(self, *, tool: str | None = None, turn: str | None = None) -> Listing:
        """Return the effects in order, or those of a tool or a turn. It reads the whole session."""
        return self._handle.run(deed_views.listed(self._handle.replica, tool=tool, turn=turn))

    def unknown(self) -> Listing:
        """Return the effects that may have happened: the process died before their outcome."""
        return self._handle.run(deed_views.unknown(self._handle.replica))

    def reconcile(self, effect: str, outcome: Done | NotDone) -> None:
        """Record what an unknown effect turned out to be; the model is told of it in a message."""
        self._handle.write(deed_views.reconcile(self._handle.replica, effect, outcome))
