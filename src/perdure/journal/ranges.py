"""Ranges of positions: inclusive, in order, and without overlaps. Pure."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0)]
"""A number in a stored record: a negative one is damage."""

Position = Annotated[int, msgspec.Meta(ge=0, extra={"is_position": True})]
"""The position of an earlier record, or 0; `verify` checks that it is earlier."""

Positions = tuple[Position, Position]
"""The first and the last position of a range."""


def merge_ranges(ranges: Iterable[Positions]) -> tuple[Positions, ...]:
    """Return ranges in order, with those joined that overlap or touch."""
    merged: list[Positions] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def clip_ranges(ranges: Iterable[Positions], end: int) -> tuple[Positions, ...]:
    """Return ranges without the positions after an end."""
    return tuple((first, min(last, end)) for first, last in ranges if first <= end)


def exclude_ranges(ranges: Iterable[Positions], excluded: Iterable[Positions]) -> list[Positions]:
    """Return ranges without the positions of others."""
    left = [*ranges]
    for start, end in excluded:
        left = [
            part
            for first, last in left
            for part in ((first, min(last, start - 1)), (max(first, end + 1), last))
            if part[0] <= part[1]
        ]
    return left


def contains(ranges: Sequence[Positions], position: int) -> bool:
    """Whether a position is in one of the ranges, which are in order and do not overlap."""
    number = bisect_right(ranges, (position, 1 << 63))
    return number > 0 and position <= ranges[number - 1][1]
