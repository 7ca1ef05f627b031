"""The fold: drafts are whole copies, and a snapshot gives the same state back."""

from perdure.core.state.session_state import STATE_VERSION, SessionState
from perdure.journal.records import BranchKept, LabelsChanged, Message, Snapshot, TurnBegun, Value


def some_fold() -> SessionState:
    fold = SessionState()
    fold.apply(1, "t-1", TurnBegun(correlation_id="req-9"), b"1")
    fold.apply(2, ".m", Message(message={"role": "user"}, turn="t-1"), b"2")
    fold.apply(3, ".v", Value(key="plan", version=1, form="full", data=1), b"3")
    fold.apply(4, ".l", LabelsChanged(add=("vip",)), b"4")
    fold.apply(5, ".k", BranchKept(reason="branch", branch="b", stream="s"), b"5")
    return fold


def test_a_draft_has_every_slot_of_its_fold() -> None:
    fold = some_fold()
    draft = fold.draft()
    for name in SessionState.__struct_fields__:
        assert getattr(draft, name) == getattr(fold, name), name


def test_what_is_done_to_a_draft_does_not_reach_its_fold() -> None:
    fold = some_fold()
    before = fold.facts()
    draft = fold.draft()
    draft.apply(6, "m-2", Message(message={}), b"6")
    draft.apply(7, ".v2", Value(key="plan", version=2, form="deleted"), b"7")
    draft.apply(8, "t-2", TurnBegun(), b"8")
    draft.apply(9, ".k2", BranchKept(reason="hold"), b"9")
    draft.apply(10, ".l2", LabelsChanged(remove=("vip",)), b"10")
    assert fold.facts() == before
    assert draft.facts() != before


def test_a_snapshot_gives_the_same_state_back() -> None:
    fold = some_fold()
    snapshot = Snapshot(state_version=STATE_VERSION, facts=fold.facts())
    restored = SessionState.restore(snapshot, b"", name="s", position=6)
    assert restored.facts() == fold.facts()
    assert restored.head_labels == fold.head_labels == {"vip", "turn-open"}
