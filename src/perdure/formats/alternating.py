"""Turns of two sides that alternate, as Anthropic and Gemini want them. Pure."""

from collections.abc import Callable
from typing import TypeAlias

from perdure.formats.parts import Native

# Where nobody spoke before the model, this is put in the user's mouth: both sides must have begun.
OPENING = "(The conversation continues.)"

Placed: TypeAlias = tuple[Native, int]  # A block, and the position it comes from.


class Turns:
    """Blocks by turns; what one side says in a row is one turn."""

    def __init__(self) -> None:
        self.turns: list[tuple[str, list[Placed]]] = []

    def add(self, role: str, blocks: list[Placed]) -> None:
        if not blocks:
            return
        if self.turns and self.turns[-1][0] == role:
            self.turns[-1][1].extend(blocks)
        else:
            self.turns.append((role, blocks))

    def revise(self, role: str, revised: Callable[[list[Placed]], list[Placed]]) -> None:
        """Pass each turn of a side through a function; one that is left empty goes."""
        before, self.turns = self.turns, []
        for side, blocks in before:
            self.add(side, revised(blocks) if side == role else blocks)

    def open(self, user: str, opening: Native) -> None:
        """Let the user begin."""
        if self.turns and self.turns[0][0] != user:
            self.turns.insert(0, (user, [(opening, 0)]))
