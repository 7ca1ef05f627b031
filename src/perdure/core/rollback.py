"""Detect that a store was put back to another history, and continue from that one. Pure.

In: a replica whose history the store may have lost. Out: steps. Errors of reading look like damage
at first; `explain_damage` finds out. Until the caller accepts the other history, the replica
refuses every plan: what the caller decided, and what its tools did, may depend on lost records.
"""

from typing import TYPE_CHECKING

from perdure.errors import DamagedError, HistoryReplacedError, PerdureError
from perdure.journal.chain import ChainTip
from perdure.journal.replacement import find_replacement
from perdure.journal.requests import Steps

if TYPE_CHECKING:
    from perdure.core.replica import Replica


def explain_damage(
    replica: "Replica", damage: DamagedError, tip: ChainTip | None = None
) -> Steps[None]:
    """Raise HistoryReplacedError if that explains the damage; else return.

    `tip` is the end of the history in which the damage was found, by default the replica's.
    """
    tip = tip or replica.tip
    if not tip.position or isinstance(damage, HistoryReplacedError):
        return
    try:
        error = yield from find_replacement(replica.history.stream, tip)
    except DamagedError:
        return
    if error is None:
        return
    # A reader may have begun before the caller accepted another history.
    if tip is replica.tip and replica.replaced is None:
        replica.refuse(error)
    raise error from damage


def skip_dropped(replica: "Replica", fresh: "Replica") -> Steps[bool]:
    """Continue with a fresh replica if a compaction dropped the tip and records after it.

    NotFoundError if the session was deleted in between, and begun anew.
    """
    try:
        yield from fresh.load()
    except PerdureError:
        return False
    known = replica.history.stream  # Without an id before the session had records.
    is_same = not known.id or fresh.history.stream == known
    if not is_same or not fresh.state.compacted or fresh.state.begin <= replica.tip.position:
        return False
    if fresh.state.created > replica.tip.position:
        replica.deleted = True  # It began anew after a deletion, which was dropped as well.
        replica.require_present()
    replica.view = fresh.view
    return True


def accept(replica: "Replica", fresh: "Replica") -> Steps[HistoryReplacedError | None]:
    """Catch up, and accept another history if the store has one; return the error it would be.

    `fresh` is an empty replica of the same session. On error nothing has changed.
    """
    replaced = replica.replaced
    if replaced is None:
        try:
            yield from replica.catch_up()
        except HistoryReplacedError as error:
            replaced = error
        else:
            return None
    yield from fresh.load()
    # An incomplete branch: opening it repairs that.
    is_kept = not fresh.is_new_branch or (yield from fresh.is_kept())
    replica.adopt(fresh, deleted=fresh.state.deleted or not is_kept)
    return replaced
