"""Token counters: an estimate without dependencies, and exact counts by vocabulary.

A message comes in, a number goes out. Pure, and deterministic on every machine, so that a count can
be stored with its message under the counter's name. The estimate errs upwards; `Estimate` says how
far, and on which texts. A change of any count needs a new counter name.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from perdure.errors import UnsupportedError, UsageError
from perdure.formats.bodies import Body
from perdure.formats.intake import ROLES

if TYPE_CHECKING:
    from splintr import AnyTokenizer

# tokens; OpenAI: "every message follows <|start|>{role}<|message|>{content}<|end|>".
MESSAGE_TOKENS = 3

NAME_TOKENS = 1  # tokens; OpenAI, for a message with a name

REPLY_TOKENS = 3  # tokens; OpenAI: the start of the reply, once per prompt


# Tokens. OpenAI publishes no figure for calls and results. These are the overhead of its published
# format for open-weight models, around a name and arguments, and around a result and a name of six
# tokens.
CALL_TOKENS = 13

RESULT_TOKENS = 12


# Tokens. The cost of an image depends on its size and on the model. At default detail, most models
# take up to 1,900; some small models take more (gpt-4.1-nano 3,779, gpt-4o-mini 48,169).
IMAGE_TOKENS = 2_000

AUDIO_LETTERS = 100  # base64 characters per token; speech at 16 kbit/s and 25 tokens a second.

FILE_LETTERS = 5  # base64 characters per token; pages are sent as text and as images

SEALED_LETTERS = 4  # base64 characters per token; encrypted reasoning


_CONTENT_FIELDS = ("content", "parts", "refusal", "reasoning", "reasoning_content", "audio")

_CALLS = frozenset({"function_call", "custom_tool_call", "tool_use", "server_tool_use", "mcp_call"})

_RESULTS = frozenset({"function_call_output", "custom_tool_call_output", "tool_result"})

_IMAGES = frozenset(
    {"image", "image_url", "input_image", "computer_screenshot", "image_generation_call"}
)

_TEXTS = frozenset(
    {"text", "input_text", "output_text", "summary_text", "reasoning_text", "refusal", "thinking"}
    | {"message", "reasoning", "document", "file", "input_file", "input_audio", "base64", "url"}
)

_HIDDEN_FIELDS = frozenset(
    {"id", "type", "status", "call_id", "tool_use_id", "tool_call_id", "signature", "cache_control"}
    | {"detail", "annotations", "logprobs", "expires_at"}
)

_DATA_FIELDS = ("data", "file_data")

_MEDIA_TYPE_FIELDS = ("media_type", "mime_type", "mimeType", "format")

_REFERENCES = frozenset({"file_id", "file_url", "fileUri"})

_AUDIO_FORMATS = frozenset({"wav", "mp3", "flac", "opus", "pcm16"})

# A dict with one of these fields is a part; any other is the caller's data, sent as JSON.
_PART_MARKERS = frozenset(
    {"type", "text", "functionCall", "functionResponse", "inlineData", "fileData", *_DATA_FIELDS}
    | _REFERENCES
)


_to_json = msgspec.json.Encoder(enc_hook=str).encode


class TextCounter:
    """Counts messages of any known shape by their texts; a subclass defines `name` and `text`.

    `name` is stored with the counts, so a different way of counting needs a different name.
    """

    name = ""
    image = IMAGE_TOKENS

    def text(self, text: str) -> int:
        """Return the number of tokens of a text."""
        raise NotImplementedError

    def count(self, message: Mapping[str, Any]) -> int:
        """Return the number of tokens of a message in a prompt, including its overhead.

        A prompt takes `REPLY_TOKENS` in addition, once, and the tokens of its tools.
        """
        if not isinstance(message, Mapping):
            raise UsageError(f"a message must be a dict, not {type(message).__name__}")
        if "role" not in message and "type" in message:
            overhead = 0 if _part_type(message) in _CALLS else MESSAGE_TOKENS
            return overhead + self._part(message)
        role = message.get("role", "user")
        is_role = isinstance(role, str) and role in ROLES
        total = MESSAGE_TOKENS + (1 if is_role else self._any(role))
        if name := message.get("name"):
            total += NAME_TOKENS + self._any(name)
        total += sum(self._any(message[key]) for key in _CONTENT_FIELDS if key in message)
        if "tool_call_id" in message:
            total += RESULT_TOKENS
        calls = message.get("tool_calls")
        total += sum(map(self._call, calls if isinstance(calls, list) else ()))
        if deprecated := message.get("function_call"):
            total += self._call(deprecated)
        return total

    def _any(self, content: object) -> int:
        """Count any value found where a text is expected."""
        if isinstance(content, str):
            return self.text(content)
        if isinstance(content, list):
            return sum(map(self._any, content))
        if isinstance(content, Body):  # A text that is too long for any window it is counted for.
            return content.size // 4
        if isinstance(content, Mapping):
            return self._json(content) if _PART_MARKERS.isdisjoint(content) else self._part(content)
        return 0 if content is None else self.text(str(content))

    def _json(self, value: object) -> int:
        return self.text(_to_json(value).decode())

    def _call(self, call: object) -> int:
        """Count the name and arguments of a call of any provider, nested or not."""
        if not isinstance(call, Mapping):
            return CALL_TOKENS + self._any(call)
        inner = call.get("function", call.get("custom", call))
        inner = inner if isinstance(inner, Mapping) else call
        total = CALL_TOKENS
        for key in ("name", "arguments", "input", "args", "output"):
            if (value := inner.get(key)) is not None:
                total += self.text(value) if isinstance(value, str) else self._json(value)
        return total

    def _part(self, part: Mapping[str, Any]) -> int:
        kind = _part_type(part)
        if kind in _IMAGES:
            return self.image
        if kind in _CALLS:
            return self._call(part)
        total = RESULT_TOKENS if kind in _RESULTS else 0
        is_known_type = not kind or kind in _TEXTS or kind in _RESULTS
        has_data = any(key in part for key in _DATA_FIELDS)
        for key, value in part.items():
            if key in _HIDDEN_FIELDS or (has_data and key in _MEDIA_TYPE_FIELDS):
                continue
            total += self._field(key, value, part)
            if not is_known_type:
                total += self.text(key)
        return total

    def _field(self, key: str, value: object, part: Mapping[str, Any]) -> int:
        kind = _part_type(part)
        if key in _IMAGES or key in _REFERENCES or key == kind == "url":
            return self.image  # The size behind a URL is unknown here.
        if key == "functionCall":
            return self._call(value)
        if key == "encrypted_content" or kind == "redacted_thinking":
            return _length(value) // SEALED_LETTERS
        if key in _DATA_FIELDS and kind != "text":
            return self._data(value, part)
        return self._any(value)

    def _data(self, value: object, part: Mapping[str, Any]) -> int:
        """Count base64 data: audio, an image, or pages."""
        media = next(
            (part[key] for key in _MEDIA_TYPE_FIELDS if isinstance(part.get(key), str)), ""
        )
        if media.startswith("audio/") or media in _AUDIO_FORMATS or "transcript" in part:
            return _length(value) // AUDIO_LETTERS
        if media.startswith("image/"):
            return self.image
        return max(_length(value) // FILE_LETTERS, self.image)


def _part_type(part: Mapping[str, Any]) -> str:
    kind = part.get("type")
    return kind if isinstance(kind, str) else ""


def _length(value: object) -> int:
    if isinstance(value, Body):
        return value.citation.text_size
    return len(value) if isinstance(value, str | bytes) else 0


__all__ = [
    "ESTIMATE",
    "REPLY_TOKENS",
    "Counter",
    "Estimate",
    "TextCounter",
    "count_tokens",
    "counter_for",
]


class Counter(Protocol):
    """Counts the tokens of messages. To write your own, subclass `TextCounter`."""

    @property
    def name(self) -> str:
        """The name stored with the counts: the same name must mean the same counts."""
        ...

    def count(self, message: Mapping[str, Any]) -> int:
        """Return the number of tokens of a message in a prompt, including its overhead."""
        ...


def count_tokens(counter: Counter, message: Mapping[str, Any]) -> int:
    """Return a message's count; UsageError if it is not a count that can be stored."""
    tokens = counter.count(message)
    if type(tokens) is not int or tokens < 0:
        reason = f"the counter {counter.name!r} must return an int of 0 or more, not {tokens!r}"
        raise UsageError(reason)
    return tokens


# Tokens per frequent letter or space: English takes 0.2, Welsh and Kabyle nearly 0.4.
COMMON_TOKENS = 0.4

# Tokens per digit, in addition to the 1 of other characters: a space before a digit is a token.
DIGIT_TOKENS = 0.6

TEXT_TOKENS = 3  # tokens per text; short texts deviate more from the average


# Without rare letters: words with many of them are split into more tokens.
_COMMON = b"abcdefghilmnoprstuy "

_NO_DIGITS = bytes(code for code in range(256) if not ord("0") <= code <= ord("9"))


def _counter_name(name: str, image: int) -> str:
    return name if image == IMAGE_TOKENS else f"{name}, image {image}"


class Estimate(TextCounter):
    """Estimates upwards from the characters alone: no dependency, 1-2 microseconds per kilobyte.

    Not below the exact counts of o200k_base and cl100k_base for natural text in over 200 languages,
    code, JSON, logs, tables of numbers, base64 and emoji. Random characters are estimated up to
    25 % too low if they are lower-case letters or rare Chinese, Korean or accented ones. English
    prose is estimated at about twice its count, text in capitals and indented text higher.
    """

    def __init__(self, *, image: int = IMAGE_TOKENS) -> None:
        self.image = image
        self.name = _counter_name("estimate", image)

    def count(self, message: Mapping[str, Any]) -> int:
        """Return the estimated number of tokens of a message in a prompt; see the class."""
        # Fast path for nearly every message: windows count many.
        if type(message) is dict and len(message) == 2:  # noqa: PLR2004 - a role and its content.
            content, role = message.get("content"), message.get("role")
            if type(content) is str and type(role) is str and role in ROLES:
                return MESSAGE_TOKENS + 1 + self.text(content)
        return super().count(message)

    def text(self, text: str) -> int:
        """Return the estimated number of tokens of a text."""
        if text.isascii():
            plain, others = text.encode(), 0.0
        else:
            plain, others = _split_ascii(text)
        rare = plain.translate(None, _COMMON)
        digits = len(rare.translate(None, _NO_DIGITS))
        common = len(plain) - len(rare)
        total = COMMON_TOKENS * common + len(rare) + DIGIT_TOKENS * digits + others
        return int(total) + TEXT_TOKENS


def _split_ascii(text: str) -> tuple[bytes, float]:
    """Return the ASCII characters of a text, and the estimated tokens of the others."""
    plain = text.encode("ascii", "ignore")
    blocks = text.encode("utf-16-be", "surrogatepass")[::2]  # The high byte of each character.
    foreign = len(blocks) - len(plain)
    spaces = min(plain.count(b" "), foreign)  # Fewer of them merge with the next word.
    more = sum(len(blocks.translate(None, lighter)) for lighter in _LIGHTER)
    return plain, foreign + more / 2 + (1 - COMMON_TOKENS) * spaces


# Highest average of tokens per character, by blocks of 256 characters; 3 for all other blocks. The
# larger figure of the two vocabularies, mostly that of cl100k_base.
_BLOCKS = {
    1.0: "00 04",  # Latin-1 and Cyrillic.
    1.5: "01-03 06",  # More Latin letters, Greek, Arabic.
    # Indic scripts, Chinese, Japanese, Korean; emoji are two units, of 2 each.
    2.0: "05 09-0a 0c-0d 17 1e 20 25 30 4e-9f ac-df ff",
    2.5: "07 0e 10",  # Syriac, Thai, Lao, Burmese, Georgian.
}


def _weights() -> dict[int, float]:
    weights = dict.fromkeys(range(256), 3.0)
    for weight, ranges in _BLOCKS.items():
        for text in ranges.split():
            first, _, last = text.partition("-")
            weights.update(dict.fromkeys(range(int(first, 16), int(last or first, 16) + 1), weight))
    return weights


_LIGHTER = tuple(
    bytes(block for block, weight in _weights().items() if weight < step)
    for step in (1.5, 2.0, 2.5, 3.0)
)


ESTIMATE: Counter = Estimate()


VOCABULARIES = ("o200k_base", "cl100k_base")


# Prefixes of model names, followed by the end, a "-" or a ":". A prefix that ends in "." matches
# any continuation. Fine-tuned ("ft:gpt-4o:…") and catalogue names ("openai/gpt-4o") are stripped
# to this form first.
_MODELS = {
    "o200k_base": (
        *("gpt-4o", "gpt-4.1", "gpt-4.5", "gpt-5", "gpt-5.", "gpt-oss", "chatgpt-4o"),
        *("o1", "o3", "o4", "codex-mini", "o200k_harmony"),
    ),
    "cl100k_base": ("gpt-4", "gpt-3.5", "gpt-35"),
}


def counter_for(model_or_vocabulary: str, *, image: int = IMAGE_TOKENS) -> Counter:
    """Return the exact counter for an OpenAI model, or for a vocabulary by its name.

    Texts are counted exactly; calls, results and images, which OpenAI does not document, get an
    allowance. Raises UnsupportedError without the package that has the vocabularies, and UsageError
    for an unknown name. Nothing is downloaded.
    """
    vocabulary = _vocabulary_for(model_or_vocabulary)
    if vocabulary not in _tokenizers:
        try:
            from splintr import Tokenizer
        except ModuleNotFoundError as error:
            hint = "pip install 'perdure[tokens]', or use perdure.formats.tokens.ESTIMATE"
            raise UnsupportedError("exact token counts", hint) from error
        _tokenizers[vocabulary] = Tokenizer.from_pretrained(vocabulary)
    return ExactCounter(vocabulary, _tokenizers[vocabulary], image=image)


_tokenizers: dict[str, "AnyTokenizer"] = {}


def _vocabulary_for(name: object) -> str:
    if not isinstance(name, str):
        raise UsageError(f"a model or vocabulary must be str, not {type(name).__name__}")
    if name in VOCABULARIES:
        return name
    base = name.rpartition("/")[2].removeprefix("ft:").lower()
    for vocabulary, beginnings in _MODELS.items():
        for beginning in beginnings:
            if base == beginning or base.startswith((f"{beginning}-", f"{beginning}:")):
                return vocabulary
            if beginning.endswith(".") and base.startswith(beginning):
                return vocabulary
    models = (model for models in _MODELS.values() for model in models if model[-1] != ".")
    names = ", ".join((*VOCABULARIES, *models))
    raise UsageError(f"no vocabulary is known for {name!r}: perdure knows {names}")


class ExactCounter(TextCounter):
    """Counts with the vocabulary of a model. Created by `counter_for`."""

    def __init__(self, name: str, tokenizer: "AnyTokenizer", *, image: int) -> None:
        self.image = image
        self.name = _counter_name(name, image)
        self._tokenizer = tokenizer

    def text(self, text: str) -> int:
        """Return the number of tokens of a text; control tokens in it are counted as plain text."""
        try:
            return len(self._tokenizer.encode_ordinary(text))
        except UnicodeEncodeError:  # A lone surrogate: no model receives one.
            text = text.encode("utf-8", "replace").decode()
            return len(self._tokenizer.encode_ordinary(text))
