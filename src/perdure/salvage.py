"""Find a session's past without opening it, as far as it can still be read. Pure.

Opening needs the newest entries to be whole. Whoever has a damaged store reads it through here,
and is told of everything that could not be read.
"""

from collections.abc import Sequence

from perdure import journal, steps
from perdure.backend import Entry
from perdure.errors import ChainError, DamagedError, NotFoundError, VersionError
from perdure.fold import Ancestor
from perdure.journal import Linked, Stream, Tip
from perdure.reading import PAGE, OnDamage, Past
from perdure.records import Branched, Deleted
from perdure.settings import Settings
from perdure.steps import Steps


def past_of(name: str, settings: Settings, on_damage: OnDamage | None) -> Steps[Past]:
    """Return where a session's records lie; raise NotFoundError if there are none."""
    tip = yield from _tip(name, on_damage)
    start, first = yield from _first(name)
    known = (yield from _vouched(name, tip)) or first
    if known is None:
        yield from _require_known_format(name)
        raise ChainError(name, start, "neither its first entries nor its last can be read")
    stream = Stream(name, known.header.stream, settings.tenant)
    lineage, begin = yield from _lineage(name, first, settings, on_damage)
    if not lineage:
        # A first entry names its session. Where one does not, those before it are missing.
        bound = first is not None and first.header.session is not None
        begin = 0 if start <= 1 else start if bound else start - 1
    return Past(stream, tip, settings.cipher, lineage, begin)


def _tip(name: str, on_damage: OnDamage | None) -> Steps[Tip]:
    damage: DamagedError | None = None
    try:
        head = yield from steps.head(name)
        if head is not None:
            return Tip(head.position, head.digest)
    except DamagedError as error:
        _report(error, on_damage)
        damage = error
    try:
        last = yield from steps.read(name, after=0, limit=1, reverse=True)
    except DamagedError as error:
        if error.position:
            # The store knows where it can read no further: all up to there is tried, one by one.
            if damage is None:
                _report(error, on_damage)
            return Tip(error.position, None)
        last, damage = (), damage or error
    if not last:
        # What can not be read for damage is not absent.
        raise damage or NotFoundError(f"session {name!r}")
    if damage is None:
        _report(DamagedError(name, 0, "it has entries, but no head"), on_damage)
    return Tip(last[0].position, None)


def _vouched(name: str, tip: Tip) -> Steps[Linked | None]:
    """Return the last entry if it is the one that the head names: its header can be trusted."""
    last = yield from _few(name, limit=1, reverse=True)
    linked = _readable(name, last[0]) if last else None
    return linked if linked is not None and linked.digest == tip.digest else None


def _first(name: str) -> Steps[tuple[int, Linked | None]]:
    """Return where a stream begins, and the first entry whose header can be read.

    Those that can not be read are told of when their turn comes.
    """
    entries = yield from _few(name, limit=PAGE)
    entries = entries or (yield from _few(name, limit=1))
    readable = (linked for entry in entries if (linked := _readable(name, entry)) is not None)
    return entries[0].position if entries else 0, next(readable, None)


def _require_known_format(name: str) -> Steps[None]:
    """Raise VersionError where nothing can be read because a newer perdure wrote it."""
    for entry in (yield from _few(name, limit=1)):
        try:
            journal.inspect(name, entry)
        except ChainError:
            return


def _few(name: str, *, limit: int, reverse: bool = False) -> Steps[Sequence[Entry]]:
    """Read some entries, or none where the store itself can not read them all."""
    try:
        return (yield from steps.read(name, after=0, limit=limit, reverse=reverse))
    except DamagedError:
        return ()


def _readable(name: str, entry: Entry) -> Linked | None:
    try:
        return journal.inspect(name, entry)
    except (DamagedError, VersionError):
        return None


def _lineage(
    name: str, first: Linked | None, settings: Settings, on_damage: OnDamage | None
) -> Steps[tuple[tuple[Ancestor, ...], int]]:
    """Return the ancestors of a session, and where the past of the oldest begins anew, if so."""
    found: list[Ancestor] = []
    while first is not None and first.header.kind == Branched.kind:
        try:
            content = journal.decode(name, first, settings.cipher)
        except DamagedError as error:
            _report(error, on_damage)
            break
        if isinstance(content, Branched):
            found.append(Ancestor(content.parent, content.stream, content.at))
            name = content.parent
        _, first = yield from _first(name)
    if not found or first is None or first.header.kind != Deleted.kind:
        return tuple(found), 0
    begin = first.entry.position
    if found[-1].at < begin:
        gone = ChainError(name, first.entry.position, "the past that was shared was deleted")
        _report(gone, on_damage)
        found.pop()
        begin = 0
    return tuple(found), begin


def _report(error: DamagedError, on_damage: OnDamage | None) -> None:
    if on_damage is None:
        raise error
    on_damage(error)
