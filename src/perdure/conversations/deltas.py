"""Merge the deltas of a stream: text is joined, lists grow or are matched by index. Pure.

Merging is associative, so that a stream can be cut into pieces anywhere: merging the merged pieces
gives what merging every delta gives. That holds while a field keeps its kind; a number where there
was text replaces it.
"""

from typing import Any

# Words that are sent whole, by some providers in every delta.
_WHOLE = frozenset({"format", "id", "index", "name", "object", "role", "status", "type"})

# Parts of a message's content that some providers send in pieces without an index.
_FLOWING = frozenset({"text", "thinking"})


class Text(list[str]):
    """The pieces of a text, joined only when it is rendered: joining each time is quadratic."""


def merge_all(tree: dict[str, Any], delta: dict[str, Any]) -> None:
    """Merge each field of a delta into a tree. The delta is not kept and not changed."""
    for name, value in delta.items():
        merge(tree, name, value)


def merge(tree: dict[str, Any], name: str, value: Any) -> None:
    kind = type(value)
    if kind is str:
        if name in _WHOLE:
            if value or tree.get(name) is None:
                tree[name] = value
        else:
            _merge_text(tree, name, value)
    elif value is None:
        tree.setdefault(name, None)
    elif kind is dict:
        found = tree.get(name)
        if type(found) is not dict:
            found = tree[name] = {}
        merge_all(found, value)
    elif kind is list:
        found = tree.get(name)
        if type(found) is not list:
            found = tree[name] = [] if type(found) is not Text else [_text_part(found)]
        for item in value:
            _merge_item(found, item)
    else:
        tree[name] = value


def _merge_text(tree: dict[str, Any], name: str, text: str) -> None:
    found = tree.get(name)
    if type(found) is Text:
        found.append(text)
    elif type(found) is list:
        _merge_item(found, {"type": "text", "text": text})
    else:
        tree[name] = Text((text,))


def _text_part(text: Text) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _merge_item(items: list[Any], item: Any) -> None:
    if type(item) is not dict:
        items.append(rendered(item))
        return
    found = _continued(items, item)
    if found is None:
        found = {}
        items.append(found)
    merge_all(found, item)


def _continued(items: list[Any], item: dict[str, Any]) -> dict[str, Any] | None:
    """Return the item in a list that another one continues."""
    kind, index = item.get("type"), item.get("index")
    if index is None:
        last = items[-1] if items and kind in _FLOWING else None
        return last if type(last) is dict and last.get("type") == kind else None
    for found in reversed(items):
        if type(found) is dict and found.get("index") == index:
            return found if kind is None or found.get("type") == kind else None
    return None


def rendered(tree: Any) -> Any:
    """Return a merged tree, or plain data, as plain data that shares nothing with it."""
    kind = type(tree)
    if kind is Text:
        return "".join(tree)
    if kind is dict:
        return {name: rendered(value) for name, value in tree.items()}
    return [rendered(item) for item in tree] if kind is list else tree
