"""Parse and write the content parts of OpenAI's Responses API. Pure."""

from collections.abc import Sequence
from typing import Any

from perdure.formats import media
from perdure.formats.fields import fit, held
from perdure.formats.parts import (
    RESPONSES,
    Losses,
    Media,
    Native,
    Opaque,
    Part,
    Refusal,
    Text,
    inexpressible,
)
from perdure.formats.responses_items import PARTS


def read_part(part: Any, at: int) -> Part | None:
    """Parse a part of a message or a result; None if it is an empty text."""
    if type(part) is str:
        return Text(at, part) if part else None
    if part is None:
        return None
    kind = part.get("type") if type(part) is dict else ""
    if kind in ("input_text", "output_text") and type(part.get("text")) is str:
        native = part if kind == "input_text" else None
        return Text(at, part["text"], native, RESPONSES if native else "") if part["text"] else None
    if kind == "refusal" and type(part.get("refusal")) is str:
        return Refusal(at, part["refusal"]) if part["refusal"] else None
    media_part: Media | None = None
    if kind == "input_image":
        if url := held(part, "image_url"):
            media_part = media.from_url(at, "image", url)
        elif id := held(part, "file_id"):
            media_part = Media(at, "image", file_id=id)
        media_part = media_part and media_part._replace(detail=held(part, "detail"))
    elif kind == "input_file":
        media_part = media.openai_file(at, part)
    if media_part is None:
        return Opaque(at, f"a part of type {kind!r}" if kind else "a part", {}, "")
    return media_part._replace(native=part, home=RESPONSES)


def write_parts(parts: Sequence[Part], role: str, losses: Losses) -> str | list[Native]:
    """Write parts as a list; a single text as a str, unless its stored message had a list."""
    if len(parts) == 1 and type(parts[0]) is Text and parts[0].native is None:
        only: str = parts[0].text
        return only
    written = []
    plain = True
    for part in parts:
        native: Native | None = None
        if type(part) is Text or type(part) is Refusal:
            native = {"type": "input_text", "text": part.text}
            if part.native is not None and part.home == RESPONSES and type(part) is Text:
                native = fit(part.native, PARTS["input_text"], "a text", part.at, losses)
                plain = False
        elif type(part) is Media and role == "user":
            native = _write_media(part, losses)
        if native is not None:
            written.append(native)
        else:
            losses.append(inexpressible(part, RESPONSES, f"from the {role}"))
    if plain and len(written) == 1 and written[0]["type"] == "input_text":
        alone: str = written[0]["text"]
        return alone
    return written


def _write_media(part: Media, losses: Losses) -> Native | None:
    if part.native is not None and part.home == RESPONSES:
        return fit(part.native, PARTS[part.native["type"]], "a part", part.at, losses)
    own_id = part.file_id if media.same_maker(part.home, RESPONSES) else ""
    if part.kind == "image" and (part.url or part.data):
        url = part.url or media.data_url(part)
        return {"type": "input_image", "image_url": url, "detail": part.detail or "auto"}
    if part.kind == "image" and own_id:
        return {"type": "input_image", "file_id": own_id, "detail": "auto"}
    if part.kind == "file" and part.data:
        name = part.name or "file"
        return {"type": "input_file", "filename": name, "file_data": media.data_url(part)}
    if part.kind == "file" and part.url:
        return {"type": "input_file", "file_url": part.url}
    if part.kind == "file" and own_id:
        return {"type": "input_file", "file_id": own_id}
    return None
