"""Images, sounds and files between the formats: addresses, data and types. Pure."""

import base64

from perdure.formats.fields import held, text
from perdure.formats.parts import Media, Native

UNKNOWN_TYPE = "application/octet-stream"


def data_url(media: Media) -> str:
    return f"data:{media.mime or UNKNOWN_TYPE};base64,{media.data}"


def from_url(at: int, kind: str, url: str, name: str = "") -> Media:
    """Make a medium of an address, which may hold the data itself."""
    head, comma, data = url.partition(",")
    if comma and head.startswith("data:") and head.endswith(";base64"):
        mime = head.removeprefix("data:").removesuffix(";base64").partition(";")[0]
        return Media(at, kind, mime=mime, data=data, name=name)
    return Media(at, kind, url=url, name=name)


def base64_text(data: object) -> str:
    """Return data as base64; bytes are what Gemini's SDK has, and base64 what its API has."""
    return base64.b64encode(data).decode() if isinstance(data, bytes) else text(data)


def kind_of(mime: str) -> str:
    first = mime.partition("/")[0]
    return first if first in ("image", "audio") else "file"


def openai_file(at: int, held_in: Native) -> Media | None:
    """Make a medium of OpenAI's three ways to hold a file, if it is one of them."""
    name = text(held_in.get("filename"))
    url = held(held_in, "file_url")
    data = held(held_in, "file_data")
    if url:
        return Media(at, "file", url=url, name=name)
    if data:
        made = from_url(at, "file", data, name)
        # Data without the head of an address is base64 all the same.
        return made if made.data else Media(at, "file", data=data, name=name)
    id = held(held_in, "file_id")
    return Media(at, "file", file_id=id, name=name) if id else None


def detail(media: Media) -> Native:
    return {"detail": media.detail} if media.detail else {}


def same_maker(home: str, format: str) -> bool:
    """Whether the ids of files in one format mean the same in the other."""
    return bool(home) and home.partition(".")[0] == format.partition(".")[0]
