"""Merge blocks into alternating turns of two roles, as Anthropic and Gemini require. Pure."""

from collections.abc import Callable
from typing import TypeAlias

from perdure.formats.parts import Native

# Placeholder for a missing first user message: both providers require the user to begin.
OPENING = "(The conversation continues.)"


PositionedBlock: TypeAlias = tuple[Native, int]  # A block, and the position of its stored message.


class AlternatingTurns:
    """Blocks in turns; consecutive blocks of one role are one turn."""

    def __init__(self) -> None:
        self.turns: list[tuple[str, list[PositionedBlock]]] = []

    def add(self, role: str, blocks: list[PositionedBlock]) -> None:
        if not blocks:
            return
        if self.turns and self.turns[-1][0] == role:
            self.turns[-1][1].extend(blocks)
        else:
            self.turns.append((role, blocks))

    def revise(
        self, role: str, revise_blocks: Callable[[list[PositionedBlock]], list[PositionedBlock]]
    ) -> None:
        """Pass each turn of a role through a function; a turn left empty is removed."""
        turns, self.turns = self.turns, []
        for turn_role, blocks in turns:
            self.add(turn_role, revise_blocks(blocks) if turn_role == role else blocks)

    def open(self, user: str, opening: Native) -> None:
        """Insert an opening user turn if another role begins."""
        if self.turns and self.turns[0][0] != user:
            self.turns.insert(0, (user, [(opening, 0)]))
