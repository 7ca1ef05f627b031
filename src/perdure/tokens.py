"""How many tokens a message takes: an estimate that needs nothing, or the exact count. Pure.

A count is the same wherever it is made, so it can be kept beside the message under the counter's
name. The estimate errs upwards; what it promises, and on which texts, is in `Estimate`.
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
    """Counts the tokens of messages. One's own is best made from `TextCounter`."""

    @property
    def name(self) -> str:
        """What is stored beside counts: the same name must mean the same counts."""
        ...

    def count(self, message: Mapping[str, Any]) -> int:
        """Return how many tokens a message takes in a prompt, what surrounds it included."""
        ...


def counted(counter: Counter, message: Mapping[str, Any]) -> int:
    """Return a message's count, or say that it is none: what can not be read back is not stored."""
    tokens = counter.count(message)
    if type(tokens) is not int or tokens < 0:
        reason = f"the counter {counter.name!r} must count to an int of 0 or more, not {tokens!r}"
        raise UsageError(reason)
    return tokens


COMMON_TOKENS = 0.4  # A frequent letter or a space. English takes 0.2, Welsh and Kabyle nearly 0.4.
DIGIT_TOKENS = 0.6  # Beyond the 1 of other characters: a space before a digit is a token itself.
TEXT_TOKENS = 3  # Short texts stray further from the average.

# Rare letters are not among them: where they abound, words are cut into more tokens.
_COMMON = b"abcdefghilmnoprstuy "
_NO_DIGITS = bytes(code for code in range(256) if not ord("0") <= code <= ord("9"))


def _name(name: str, image: int) -> str:
    return name if image == IMAGE_TOKENS else f"{name}, image {image}"


class Estimate(TextCounter):
    """Estimates from the characters alone, upwards: no dependency, a microsecond or two a kilobyte.

    Not below the exact counts of o200k_base and cl100k_base for natural text in over 200 languages,
    code, JSON, logs, tables of numbers, base64 and emoji. Characters drawn at random come out up to
    25 % too low if they are lower-case letters or rare Chinese, Korean or accented ones. English
    prose comes out at about twice its count, text in capitals and indented text higher.
    """

    def __init__(self, *, image: int = IMAGE_TOKENS) -> None:
        self.image = image
        self.name = _name("estimate", image)

    def count(self, message: Mapping[str, Any]) -> int:
        """Return about how many tokens a message takes in a prompt; see the class."""
        # Nearly every message is no more than this, and windows count many.
        if type(message) is dict and len(message) == 2:  # noqa: PLR2004 - a role and its content.
            content, role = message.get("content"), message.get("role")
            if type(content) is str and type(role) is str and role in ROLES:
                return MESSAGE_TOKENS + 1 + self.text(content)
        return super().count(message)

    def text(self, text: str) -> int:
        """Return about how many tokens a text takes."""
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
    """Return the ASCII characters of a text, and about how many tokens the others take."""
    plain = text.encode("ascii", "ignore")
    blocks = text.encode("utf-16-be", "surrogatepass")[::2]  # The high byte of each character.
    foreign = len(blocks) - len(plain)
    spaces = min(plain.count(b" "), foreign)  # Fewer of them join the word that follows.
    more = sum(len(blocks.translate(None, lighter)) for lighter in _LIGHTER)
    return plain, foreign + more / 2 + (1 - COMMON_TOKENS) * spaces


# Tokens that a character takes at most on average, by blocks of 256 characters, where not 3: the
# larger figure of both vocabularies, which is mostly that of cl100k_base.
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

# How the names of models begin, up to their end, a "-" or a ":"; or up to a ".", where that is
# given. Those of fine-tuned models ("ft:gpt-4o:…") and of catalogues ("openai/gpt-4o") end so.
_MODELS = {
    "o200k_base": (
        *("gpt-4o", "gpt-4.1", "gpt-4.5", "gpt-5", "gpt-5.", "gpt-oss", "chatgpt-4o"),
        *("o1", "o3", "o4", "codex-mini", "o200k_harmony"),
    ),
    "cl100k_base": ("gpt-4", "gpt-3.5", "gpt-35"),
}


def counter_for(model_or_vocabulary: str, *, image: int = IMAGE_TOKENS) -> Counter:
    """Return the counter that is exact for a model of OpenAI's, or for a vocabulary by its name.

    Exact is the text; what OpenAI does not document (calls, results, images) is an allowance.
    Without the package that knows the vocabularies it is UnsupportedError, and for a name that is
    not known UsageError. Nothing is downloaded.
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
    known = ", ".join((*VOCABULARIES, *models))
    raise UsageError(f"no vocabulary is known for {name!r}: perdure knows {known}")


class Exact(TextCounter):
    """Counts with the vocabulary of the model. Made by `counter_for`."""

    def __init__(self, name: str, tokenizer: "AnyTokenizer", *, image: int) -> None:
        self.image = image
        self.name = _name(name, image)
        self._tokenizer = tokenizer

    def text(self, text: str) -> int:
        """Return how many tokens a text takes; what looks like a control token is mere text."""
        try:
            return len(self._tokenizer.encode_ordinary(text))
        except UnicodeEncodeError:  # A lone surrogate: no model gets one.
            text = text.encode("utf-8", "replace").decode()
            return len(self._tokenizer.encode_ordinary(text))
