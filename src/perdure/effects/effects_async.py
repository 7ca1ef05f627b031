"""AsyncEffects: what a session did, reached as `session.effects`. Its twin is in `effects`."""

from datetime import datetime

from perdure.effects import deed_views
from perdure.effects.deed_views import Found, Wanted
from perdure.effects.effecting import Kind
from perdure.effects.tools import Changed, Done, NotDone
from perdure.handle_async import AsyncHandle

Listing = list[Found]
Changes = list[Changed]


class AsyncEffects:
    """The tool and model calls of a session, and what became of them."""

    def __init__(self, handle: AsyncHandle) -> None:
        self._handle = handle

    async def list(
        self,
        *,
        tool: str | None = None,
        turn: str | None = None,
        kind: Kind | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Listing:
        """Return the effects in order, or those of a tool, a turn or a kind ("tool", "model").

        `since` and `until` are times with a zone: of calls begun then or later, and before then.
        It reads the whole session.
        """
        replica, wanted = self._handle.replica, Wanted(tool, turn, kind, since, until)
        return await self._handle.run(deed_views.listed(replica, wanted))

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

    async def reconcile(self, effect: str | Found, outcome: Done | NotDone) -> None:
        """Record what an unknown effect turned out to be; the model is told of it in a message."""
        await self._handle.write(deed_views.reconcile(self._handle.replica, effect, outcome))
