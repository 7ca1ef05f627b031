"""Convert images, audio and files between formats: URLs, base64 data and MIME types. Pure."""

import base64

from perdure.formats.fields import as_text, first_text
from perdure.formats.parts import Media, Native

UNKNOWN_TYPE = "application/octet-stream"


def data_url(media: Media) -> str:
    return f"data:{media.mime or UNKNOWN_TYPE};base64,{media.data}"


def from_url(at: int, kind: str, url: str, name: str = "") -> Media:
    """Return media from a URL, which may be a data URL."""
    head, comma, data = url.partition(",")
    if comma and head.startswith("data:") and head.endswith(";base64"):
        mime = head.removeprefix("data:").removesuffix(";base64").partition(";")[0]
        return Media(at, kind, mime=mime, data=data, name=name)
    return Media(at, kind, url=url, name=name)


def base64_text(data: object) -> str:
    """Return data as base64: Gemini's SDK has bytes, its API has base64."""
    return base64.b64encode(data).decode() if isinstance(data, bytes) else as_text(data)


def kind_of(mime: str) -> str:
    first = mime.partition("/")[0]
    return first if first in ("image", "audio") else "file"


def from_openai_file(at: int, file: Native) -> Media | None:
    """Return media from any of OpenAI's three file forms (URL, data, id); None if it has none."""
    name = as_text(file.get("filename"))
    url = first_text(file, "file_url")
    data = first_text(file, "file_data")
    if url:
        return Media(at, "file", url=url, name=name)
    if data:
        media = from_url(at, "file", data, name)
        # Data without a data-URL prefix is plain base64.
        return media if media.data else Media(at, "file", data=data, name=name)
    id = first_text(file, "file_id")
    return Media(at, "file", file_id=id, name=name) if id else None


def detail_field(media: Media) -> Native:
    return {"detail": media.detail} if media.detail else {}


def same_provider(home: str, format: str) -> bool:
    """Whether file ids of one format are valid in the other: both are from one provider."""
    return bool(home) and home.partition(".")[0] == format.partition(".")[0]
