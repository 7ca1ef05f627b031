"""AsyncEffects: list and reconcile the effects of a session, reached as `session.effects`."""

from datetime import datetime

from perdure.effects import deed_views
from perdure.effects.deed_views import Found, Wanted
from perdure.effects.effecting import Kind
from perdure.effects.tools import Changed, Done, NotDone
from perdure.handle_async import AsyncHandle

Listing = list[Found]
Changes = list[Changed]


class AsyncEffects:
    """The tool and model calls of a session, and their outcomes."""

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

        `since` and `until` are datetimes with a zone: calls begun at or after `since`, and before
        `until`. Reads the whole session.
        """
        replica, wanted = self._handle.replica, Wanted(tool, turn, kind, since, until)
        return await self._handle.run(deed_views.listed(replica, wanted))

    @property
    def changed(self) -> Changes:
        """Calls resumed by this handle that another version of their tool had begun.

        A recorded outcome was returned all the same; a call without an outcome was made again, or
        not, according to the tool's policy.
        """
        return [*self._handle.changed]

    async def unknown(self) -> Listing:
        """Return the effects that may have happened: the process died before their outcome."""
        return await self._handle.run(deed_views.unknown(self._handle.replica))

    async def reconcile(self, effect: str | Found, outcome: Done | NotDone) -> None:
        """Record the real outcome of an unknown effect, and a message about it for the model."""
        await self._handle.write(deed_views.reconcile(self._handle.replica, effect, outcome))
