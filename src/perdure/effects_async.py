"""AsyncEffects: what a session did, reached as `session.effects`. Its twin is in `effects`."""

from perdure import deed_views
from perdure.deed_views import Found
from perdure.effecting import Kind
from perdure.handle_async import AsyncHandle
from perdure.tools import Changed, Done, NotDone

Listing = list[Found]
Changes = list[Changed]


class AsyncEffects:
    """The tool and model calls of a session, and what became of them."""

    def __init__(self, handle: AsyncHandle) -> None:
        self._handle = handle

    async def list(
        self, *, tool: str | None = None, turn: str | None = None, kind: Kind | None = None
    ) -> Listing:
        """Return the effects in order, or those of a tool, a turn or a kind ("tool", "model").

        It reads the whole session.
        """
        replica = self._handle.replica
        return await self._handle.run(deed_views.listed(replica, tool=tool, turn=turn, kind=kind))

    @property
    def changed(self) -> Changes:
        """The calls that another version of their tool had begun, as this handle met them.

        What was recorded was returned all the same; what had no outcome was made again, or not,
        as the tool's policy has it.
        """
        return [*self._handle.changed]

    async def unknown(self) -> Listing:
        """Return the effects that may have happened: the process died before their outcome."""
        return await self._handle.run(deed_views.unknown(self._handle.replica))

    async def reconcile(self, effect: str, outcome: Done | NotDone) -> None:
        """Record what an unknown effect turned out to be; the model is told of it in a message."""
        await self._handle.write(deed_views.reconcile(self._handle.replica, effect, outcome))
