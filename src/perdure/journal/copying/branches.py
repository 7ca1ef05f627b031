"""Find the branches in the target that share the history a deletion would remove. Pure.

The stream itself records a keep for each of its branches. A branch that the source has deleted is
deleted in the target too, when its stream is copied; a branch that still exists needs its history.
"""

from perdure.backends.protocol import DELETED, Head
from perdure.journal import chain
from perdure.journal.chain import BatchAssembler, VerifiedEntry
from perdure.journal.cipher import PlainCipher
from perdure.journal.copying import requests
from perdure.journal.copying.plan import read_one
from perdure.journal.copying.requests import CopySteps
from perdure.journal.copying.source import StreamReader
from perdure.journal.records import Branched, BranchKept, BranchReleased


def living_branches(target: Head) -> CopySteps[list[Head]]:
    """Return the heads of the branches of a target stream that are not deleted."""
    living = []
    for kept in (yield from _read_keeps(target)).values():
        head = (yield from requests.head("target", kept.branch)) if kept.branch else None
        if head is None or DELETED in head.labels:
            continue
        (first, *_) = yield from read_one("target", kept.branch)
        header = chain.verify_entry(kept.branch, first).header
        if (header.kind, header.stream) == (Branched.kind, kept.stream):
            living.append(head)
    return living


def _read_keeps(target: Head) -> CopySteps[dict[str, BranchKept]]:
    keeps: dict[str, BranchKept] = {}
    reader, batches = (
        StreamReader("target", target, after=0, tip=None),
        BatchAssembler(target.stream),
    )
    while not reader.ended:
        for linked in (yield from reader.page()):
            for complete in batches.add(linked):
                _apply_keep(keeps, target.stream, complete)
    return keeps


def _apply_keep(keeps: dict[str, BranchKept], name: str, linked: VerifiedEntry) -> None:
    if linked.header.kind not in {BranchKept.kind, BranchReleased.kind}:
        return
    content = chain.decode_content(name, linked, PlainCipher())
    if isinstance(content, BranchKept):
        keeps[linked.header.id] = content
    elif isinstance(content, BranchReleased):
        keeps.pop(content.keep, None)
