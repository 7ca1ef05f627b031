"""Find the branches in the target that share the history a deletion would remove. Pure.

The stream itself records a keep for each of its branches. A branch that the source has deleted is
deleted in the target too, when its stream is copied; a branch that still exists needs its history.
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


def living_branches(target: Head) -> CopySteps[list[Head]]:
    """Return the heads of the branches of a target stream that are not deleted."""
    living = []
    for kept in (yield from _keeps(target)).values():
        head = (yield from ask.head("target", kept.branch)) if kept.branch else None
        if head is None or DELETED in head.labels:
            continue
        (first, *_) = yield from some("target", kept.branch)
        header = journal.inspect(kept.branch, first).header
        if (header.kind, header.stream) == (Branched.kind, kept.stream):
            living.append(head)
    return living


def _keeps(target: Head) -> CopySteps[dict[str, Kept]]:
    keeps: dict[str, Kept] = {}
    reader, batches = Walk("target", target, after=0, tip=None), Batches(target.stream)
    while not reader.ended:
        for linked in (yield from reader.page()):
            for complete in batches.add(linked):
                _note(keeps, target.stream, complete)
    return keeps


def _note(keeps: dict[str, Kept], name: str, linked: Linked) -> None:
    if linked.header.kind not in {Kept.kind, Released.kind}:
        return
    content = journal.decode(name, linked, Plain())
    if isinstance(content, Kept):
        keeps[linked.header.id] = content
    elif isinstance(content, Released):
        keeps.pop(content.keep, None)
