"""AsyncEffects: list and reconcile the effects of a session, reached as `session.effects`."""

from datetime import datetime

from perdure.aio.handle import AsyncHandle
from perdure.core.effects import listing
from perdure.core.effects.calls import DidNotHappen, Happened, Kind, VersionMismatch
from perdure.core.effects.listing import EffectFilter, EffectInfo

EffectList = list[EffectInfo]

VersionMismatches = list[VersionMismatch]


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
    ) -> EffectList:
        """Return the effects in order, or those of a tool, a turn or a kind ("tool", "model").

        `since` and `until` are datetimes with a zone: calls begun at or after `since`, and before
        `until`. Reads the whole session.
        """
        replica, wanted = self._handle.replica, EffectFilter(tool, turn, kind, since, until)
        return await self._handle.run(listing.list_effects(replica, wanted))

    @property
    def changed(self) -> VersionMismatches:
        """Calls resumed by this handle that another version of their tool had begun.

        A recorded outcome was returned all the same; a call without an outcome was made again, or
        not, according to the tool's policy.
        """
        return [*self._handle.version_mismatches]

    async def unknown(self) -> EffectList:
        """Return the effects that may have happened: the process died before their outcome."""
        return await self._handle.run(listing.list_unknown(self._handle.replica))

    async def reconcile(self, effect: str | EffectInfo, outcome: Happened | DidNotHappen) -> None:
        """Record the real outcome of an unknown effect, and a message about it for the model."""
        await self._handle.write(listing.plan_reconciliation(self._handle.replica, effect, outcome))
