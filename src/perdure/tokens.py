"""Token counters: an estimate without dependencies, and exact counts by vocabulary.

A message comes in, a number goes out. Pure, and deterministic on every machine, so that a count can
be stored with its message under the counter's name. The estimate errs upwards; `Estimate` says how
far, and on which texts. A change of any count needs a new counter name.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from perdure.conversations.intake import ROLES
from perdure.conversations.tokens_shapes import (
    IMAGE_TOKENS,
    MESSAGE_TOKENS,
    REPLY_TOKENS,
    TextCounter,
)
from perdure.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from splintr import AnyTokenizer

__all__ = [
    "ESTIMATE",
    "REPLY_TOKENS",
    "Counter",
    "Estimate",
    "TextCounter",
    "counted",
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


def counted(counter: Counter, message: Mapping[str, Any]) -> int:
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


def _name(name: str, image: int) -> str:
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
        self.name = _name("estimate", image)

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
            plain, others = _split(text)
        rare = plain.translate(None, _COMMON)
        digits = len(rare.translate(None, _NO_DIGITS))
        common = len(plain) - len(rare)
        total = COMMON_TOKENS * common + len(rare) + DIGIT_TOKENS * digits + others
        return int(total) + TEXT_TOKENS


def _split(text: str) -> tuple[bytes, float]:
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
    vocabulary = _vocabulary(model_or_vocabulary)
    if vocabulary not in _loaded:
        try:
            from splintr import Tokenizer
        except ModuleNotFoundError as error:
            hint = "pip install 'perdure[tokens]', or use perdure.tokens.ESTIMATE"
            raise UnsupportedError("exact token counts", hint) from error
        _loaded[vocabulary] = Tokenizer.from_pretrained(vocabulary)
    return Exact(vocabulary, _loaded[vocabulary], image=image)


_loaded: dict[str, "AnyTokenizer"] = {}


def _vocabulary(name: object) -> str:
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


class Exact(TextCounter):
    """Counts with the vocabulary of a model. Created by `counter_for`."""

    def __init__(self, name: str, tokenizer: "AnyTokenizer", *, image: int) -> None:
        self.image = image
        self.name = _name(name, image)
        self._tokenizer = tokenizer

    def text(self, text: str) -> int:
        """Return the number of tokens of a text; control tokens in it are counted as plain text."""
        try:
            return len(self._tokenizer.encode_ordinary(text))
        except UnicodeEncodeError:  # A lone surrogate: no model receives one.
            text = text.encode("utf-8", "replace").decode()
            return len(self._tokenizer.encode_ordinary(text))
