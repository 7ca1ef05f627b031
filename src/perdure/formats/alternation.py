"""Write messages as alternating turns of two roles, as Anthropic and Gemini require. Pure."""

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from perdure.formats.parts import (
    Losses,
    Native,
    NormalizedMessage,
    Reasoning,
    ToolCall,
    ToolResult,
    unsupported_part,
)

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


class BlockWriter(NamedTuple):
    """How a format writes the blocks of its turns."""

    format: str
    assistant: str
    write_blocks: Callable[[NormalizedMessage, Losses], Iterable[PositionedBlock]]
    write_result: Callable[[ToolCall, ToolResult, Losses], Native]
    is_reasoning: Callable[[Native], bool]

    def write(
        self, messages: list[NormalizedMessage], losses: Losses
    ) -> tuple[AlternatingTurns, list[Native]]:
        """Return the turns, in which results follow their calls, and the system's blocks."""
        turns = AlternatingTurns()
        system: list[Native] = []
        for message in messages:
            blocks = [*self.write_blocks(message, losses)]
            if message.role == "system":
                system += [block for block, _ in blocks]
            elif message.role == "assistant":
                turns.add(self.assistant, self.drop_trailing_reasoning(blocks, losses))
                results = [
                    (self.write_result(part, part.result, losses), part.result.at)
                    for part in message.parts
                    if type(part) is ToolCall and part.result is not None
                ]
                turns.add("user", results)
            else:
                turns.add("user", blocks)
        return turns, system

    def drop_trailing_reasoning(
        self, blocks: list[PositionedBlock], losses: Losses
    ) -> list[PositionedBlock]:
        """Drop reasoning at the end: the content it led to is missing."""
        while blocks and self.is_reasoning(blocks[-1][0]):
            block, at = blocks.pop()
            losses.append(unsupported_part(Reasoning(at, block, self.format), self.format))
        return blocks
