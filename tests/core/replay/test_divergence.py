"""What a replay compares."""

from perdure.core.replay import divergence
from perdure.journal.kinds import KINDS


def test_fields_that_a_replay_ignores_are_fields_of_their_kinds() -> None:
    for kind, ignored in divergence._IGNORED_FIELDS.items():
        assert {*ignored} <= {*KINDS[kind].__struct_fields__}, kind
