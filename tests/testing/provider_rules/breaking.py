"""Valid conversations, and how one place of them is changed to break one rule."""

import copy
from typing import Any

Path = tuple[int | str, ...]
GONE = object()
"""As a value: take the place away."""


def changed(conversation: list[Any], path: Path, value: Any) -> list[Any]:
    """Copy the conversation with the value at the path; at an index beyond the end it is added."""
    result = copy.deepcopy(conversation)
    place: Any = result
    for step in path[:-1]:
        place = place[step]
    last = path[-1]
    if value is GONE:
        del place[last]
    elif isinstance(place, list) and isinstance(last, int) and last >= len(place):
        place.append(value)
    else:
        place[last] = value
    return result


def inserted(conversation: list[Any], index: int, *values: Any) -> list[Any]:
    result = copy.deepcopy(conversation)
    result[index:index] = copy.deepcopy([*values])
    return result
