"""Merge the deltas of a stream: text is joined, list items are appended or matched by index.

Deltas come in, a merged tree goes out. Pure; a delta is never kept or changed.

Merging is associative, so that a stream can be cut into pieces anywhere: merging the merged pieces
gives the same as merging every delta. That holds while a field keeps its type; a number replaces
text.
"""

from typing import Any

# Fields that are sent whole, by some providers in every delta: replaced, never joined.
_WHOLE_FIELDS = frozenset({"format", "id", "index", "name", "object", "role", "status", "type"})


# Content parts that some providers stream without an index: joined with the part before.
_UNINDEXED_PARTS = frozenset({"text", "thinking"})


class TextBuffer(list[str]):
    """The pieces of a text, joined only by `materialize`: joining each time would be quadratic."""


def merge_all(tree: dict[str, Any], delta: dict[str, Any]) -> None:
    """Merge each field of a delta into a tree. The delta is neither kept nor changed."""
    for name, value in delta.items():
        merge(tree, name, value)


def merge(tree: dict[str, Any], name: str, value: Any) -> None:
    kind = type(value)
    if kind is str:
        if name in _WHOLE_FIELDS:
            if value or tree.get(name) is None:
                tree[name] = value
        else:
            _merge_text(tree, name, value)
    elif value is None:
        tree.setdefault(name, None)
    elif kind is dict:
        current = tree.get(name)
        if type(current) is not dict:
            current = tree[name] = {}
        merge_all(current, value)
    elif kind is list:
        current = tree.get(name)
        if type(current) is not list:
            current = tree[name] = [] if type(current) is not TextBuffer else [_text_part(current)]
        for item in value:
            _merge_item(current, item)
    else:
        tree[name] = value


def _merge_text(tree: dict[str, Any], name: str, text: str) -> None:
    current = tree.get(name)
    if type(current) is TextBuffer:
        current.append(text)
    elif type(current) is list:
        _merge_item(current, {"type": "text", "text": text})
    else:
        tree[name] = TextBuffer((text,))


def _text_part(text: TextBuffer) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _merge_item(items: list[Any], item: Any) -> None:
    if type(item) is not dict:
        items.append(materialize(item))
        return
    target = _item_to_continue(items, item)
    if target is None:
        target = {}
        items.append(target)
    merge_all(target, item)


def _item_to_continue(items: list[Any], item: dict[str, Any]) -> dict[str, Any] | None:
    """Return the list item that a new item continues; None if it begins another."""
    kind, index = item.get("type"), item.get("index")
    if index is None:
        last = items[-1] if items and kind in _UNINDEXED_PARTS else None
        return last if type(last) is dict and last.get("type") == kind else None
    for earlier in reversed(items):
        if type(earlier) is dict and earlier.get("index") == index:
            return earlier if kind is None or earlier.get("type") == kind else None
    return None


def materialize(tree: Any) -> Any:
    """Return a merged tree, or plain data, as a plain copy that shares nothing with it."""
    kind = type(tree)
    if kind is TextBuffer:
        return "".join(tree)
    if kind is dict:
        return {name: materialize(value) for name, value in tree.items()}
    return [materialize(item) for item in tree] if kind is list else tree
