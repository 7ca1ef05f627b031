"""Find the branches in the target whose past a deletion would take with it. Pure.

Their keeps stand in the stream itself. What was copied from the source and has ended there ends in
the target as well, in its turn; what lives on there needs its past.
"""

from perdure import journal
from perdure.backend import Head
from perdure.cipher import Plain
from perdure.copying import asking as ask
from perdure.copying.asking import CopySteps
from perdure.copying.chain import Walk
from perdure.copying.plan import some
from perdure.fold import DELETED
from perdure.journal import Batches, Linked
from perdure.records import Branched, Kept, Released


def living_branches(there: Head) -> CopySteps[list[Head]]:
    """Return the heads of the branches that a stream of the target has and that are not deleted."""
    living = []
    for kept in (yield from _keeps(there)).values():
        head = (yield from ask.head("target", kept.branch)) if kept.branch else None
        if head is None or DELETED in head.labels:
            continue
        (first, *_) = yield from some("target", kept.branch)
        header = journal.inspect(kept.branch, first).header
        if (header.kind, header.stream) == (Branched.kind, kept.stream):
            living.append(head)
    return living


def _keeps(there: Head) -> CopySteps[dict[str, Kept]]:
    keeps: dict[str, Kept] = {}
    walk, batches = Walk("target", there, after=0, tip=None), Batches(there.stream)
    while not walk.ended:
        for linked in (yield from walk.page()):
            for whole in batches.add(linked):
                _note(keeps, there.stream, whole)
    return keeps


def _note(keeps: dict[str, Kept], name: str, linked: Linked) -> None:
    if linked.header.kind not in {Kept.kind, Released.kind}:
        return
    content = journal.decode(name, linked, Plain())
    if isinstance(content, Kept):
        keeps[linked.header.id] = content
    elif isinstance(content, Released):
        keeps.pop(content.keep, None)
