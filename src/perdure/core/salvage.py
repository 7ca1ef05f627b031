"""Locate a damaged session's history without opening it, as far as it is readable. Pure.

Opening requires intact newest entries. A damaged store is read through this module instead, which
reports everything it could not read to `on_damage`, or raises it.
"""

from collections.abc import Sequence

from perdure.backends.protocol import Entry
from perdure.core.settings import Settings
from perdure.errors import ChainError, DamagedError, NotFoundError, VersionError
from perdure.journal import chain, dropped, reader, requests
from perdure.journal.chain import ChainTip, StreamIdentity, VerifiedEntry
from perdure.journal.reader import PAGE, History, OnDamage, ParentStream
from perdure.journal.records import Branched, Deleted
from perdure.journal.requests import Steps


def salvage_history(name: str, settings: Settings, on_damage: OnDamage | None) -> Steps[History]:
    """Return the history of a session; raise NotFoundError if it has no entries."""
    settings = settings.for_session()
    tip = yield from _find_tip(name, on_damage)
    start, first = yield from _first_readable(name)
    readable = (yield from _trusted_last(name, tip)) or first
    if readable is None:
        yield from _require_known_format(name)
        raise ChainError(name, start, "neither its first entries nor its last one can be read")
    stream = StreamIdentity(name, readable.header.stream, settings.tenant)
    lineage, begin = yield from _find_ancestors(name, first, on_damage)
    compacted = 0
    if not lineage:
        # The first entry of a stream names its session; without that, earlier ones are missing,
        # unless a compaction dropped them.
        is_bound = first is not None and first.header.begins_stream
        begin = 0 if start <= 1 else start if is_bound else start - 1
        if start > 1 and not is_bound:
            compacted = yield from _find_compaction(name, start, settings)
            begin = start if compacted else begin
    return History(stream, tip, settings.cipher, lineage, begin, erasures=None, compacted=compacted)


def _find_compaction(name: str, start: int, settings: Settings) -> Steps[int]:
    """Return the position of the compaction that lets a stream begin at a position, or 0."""
    try:
        compaction = yield from dropped.find_compaction(name, settings.cipher)
    except (DamagedError, VersionError):
        return 0
    return compaction.position if compaction is not None and start <= compaction.first else 0


def _find_tip(name: str, on_damage: OnDamage | None) -> Steps[ChainTip]:
    damage: DamagedError | None = None
    try:
        head = yield from requests.head(name)
        if head is not None:
            return ChainTip(head.position, head.digest)
    except DamagedError as error:
        _report(error, on_damage)
        damage = error
    try:
        last = yield from requests.read(name, after=0, limit=1, reverse=True)
    except DamagedError as error:
        if error.position:
            # The store knows where it cannot read further: everything before is tried, one by one.
            if damage is None:
                _report(error, on_damage)
            return ChainTip(error.position, None)
        last, damage = (), damage or error
    if not last:
        # Unreadable is not absent: report the damage, not NotFoundError.
        raise damage or NotFoundError(f"session {name!r}", "list them with store.sessions()")
    if damage is None:
        _report(DamagedError(name, 0, "it has entries and no head"), on_damage)
    return ChainTip(last[0].last, None)


def _trusted_last(name: str, tip: ChainTip) -> Steps[VerifiedEntry | None]:
    """Return the last entry if the head points to it: then its header can be trusted."""
    last = yield from _try_read(name, limit=1, reverse=True)
    linked = _try_verify(name, last[0]) if last else None
    return linked if linked is not None and linked.digest == tip.digest else None


def _first_readable(name: str) -> Steps[tuple[int, VerifiedEntry | None]]:
    """Return where a stream begins, and the first entry whose header can be read.

    Unreadable entries are not reported here; reading the history reports them later.
    """
    entries = yield from _try_read(name, limit=PAGE)
    entries = entries or (yield from _try_read(name, limit=1))
    readable = (linked for entry in entries if (linked := _try_verify(name, entry)) is not None)
    return entries[0].position if entries else 0, next(readable, None)


def _require_known_format(name: str) -> Steps[None]:
    """Raise VersionError if nothing is readable because a newer perdure wrote it."""
    for entry in (yield from _try_read(name, limit=1)):
        try:
            chain.verify_entry(name, entry)
        except ChainError:
            return


def _try_read(name: str, *, limit: int, reverse: bool = False) -> Steps[Sequence[Entry]]:
    """Read some entries; return none if the store cannot read all of them."""
    try:
        return (yield from requests.read(name, after=0, limit=limit, reverse=reverse))
    except DamagedError:
        return ()


def _try_verify(name: str, entry: Entry) -> VerifiedEntry | None:
    """Return an entry whose header can be read; records whose body is damaged are left out."""
    try:
        return chain.verify_entry(name, entry, lambda _: None)
    except (DamagedError, VersionError):
        return None


def _find_ancestors(
    name: str, first: VerifiedEntry | None, on_damage: OnDamage | None
) -> Steps[tuple[tuple[ParentStream, ...], int]]:
    """Return a session's ancestors, and where the oldest one restarts after a deletion, else 0."""
    ancestors: list[ParentStream] = []
    while first is not None and first.header.kind == Branched.kind:
        try:
            # Each parent begins before its branch does, so this ends. A session that stands in its
            # own history, because rows were exchanged, would be its own parent forever.
            if ancestors and first.entry.position > ancestors[-1].at:
                reason = "its history would contain itself: it begins after its branch"
                raise ChainError(name, first.entry.position, reason)
            parent = reader.parent_of(name, first)
        except DamagedError as error:
            _report(error, on_damage)
            break
        ancestors.append(parent)
        name = parent.name
        _, first = yield from _first_readable(name)
    if not ancestors or first is None or first.header.kind != Deleted.kind:
        return tuple(ancestors), 0
    begin = first.entry.position
    if ancestors[-1].at < begin:
        reason = "the history shared with its branch was deleted"
        _report(ChainError(name, first.entry.position, reason), on_damage)
        ancestors.pop()
        begin = 0
    return tuple(ancestors), begin


def _report(error: DamagedError, on_damage: OnDamage | None) -> None:
    if on_damage is None:
        raise error
    on_damage(error)
