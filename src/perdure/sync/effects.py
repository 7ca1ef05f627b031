"""Effects: what a session did, reached as `session.effects`. Its twin is in `effects_async`."""

from datetime import datetime

from perdure.core.effects import listing
from perdure.core.effects.calls import Done, Kind, NotDone, VersionMismatch
from perdure.core.effects.listing import EffectFilter, EffectInfo
from perdure.sync.handle import Handle

EffectList = list[EffectInfo]

VersionMismatches = list[VersionMismatch]


class Effects:
    """The tool and model calls of a session, and what became of them."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def list(
        self,
        *,
        tool: str | None = None,
        turn: str | None = None,
        kind: Kind | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> EffectList:
        """Return the effects in order, or those of a tool, a turn or a kind ("tool", "model").

        `since` and `until` are times with a zone: of calls begun then or later, and before then.
        It reads the whole session.
        """
        replica, wanted = self._handle.replica, EffectFilter(tool, turn, kind, since, until)
        return self._handle.run(listing.list_effects(replica, wanted))

    @property
    def changed(self) -> VersionMismatches:
        """The calls that another version of their tool had begun, as this handle met them.

        What was recorded was returned all the same; what had no outcome was made again, or not,
        as the tool's policy has it.
        """
        return [*self._handle.changed]

    def unknown(self) -> EffectList:
        """Return the effects that may have happened: the process died before their outcome."""
        return self._handle.run(listing.list_unknown(self._handle.replica))

    def reconcile(self, effect: str | EffectInfo, outcome: Done | NotDone) -> None:
        """Record what an unknown effect turned out to be; the model is told of it in a message."""
        self._handle.write(listing.plan_reconciliation(self._handle.replica, effect, outcome))
