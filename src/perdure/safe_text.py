"""Show untrusted text without harm: in a log line, on a terminal, in a command to copy.

Ids, names and reasons may come from users. Raw, a line break forges a line of a log, an escape
sequence rewrites a screen, and a character that reverses the reading direction hides what a command
does. Pure.
"""

import re
from collections.abc import Iterable
from functools import cache
from re import Match, Pattern


@cache  # Compiled on first use: most programs never need it.
def _unsafe() -> Pattern[str]:
    """Return the pattern of characters that are not shown as they are."""
    # Controls, reading directions, line separators, invisible marks, surrogates, non-characters.
    # The joiners U+200C and U+200D stay: some languages, and emoji, need them.
    return re.compile(
        "[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f"
        "\u2028-\u202e\u2060-\u206f\u3164\ufdd0-\ufdef\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff"
        "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
        "\U000e0000-\U000e0fff\ud800-\udfff]"
    )


def is_safe(text: str) -> bool:
    """Return whether a text has no control and no invisible character."""
    return (text.isascii() and text.isprintable()) or _unsafe().search(text) is None


def safe(text: str) -> str:
    """Return the text on one line, with every invisible or control character escaped."""
    return text if is_safe(text) else _unsafe().sub(_escape, text)


def _escape(match: Match[str]) -> str:
    return match[0].encode("unicode_escape", "surrogatepass").decode("ascii")


def safe_json(document: str) -> str:
    """Return a JSON document that means the same and has no invisible character."""
    return document if is_safe(document) else _unsafe().sub(_escape_json, document)


def _escape_json(match: Match[str]) -> str:
    data = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{data[at : at + 2].hex()}" for at in range(0, len(data), 2))


def shell_command(*words: str, ids: Iterable[str] = (), options: Iterable[str] = ()) -> str:
    """Return a command for a shell that runs exactly these words, and shows all of them.

    If one of the `ids` begins with a dash, they come last and after `--`: it is not an option.
    """
    dashed = any(id.startswith("-") for id in ids)
    rest = [*options, "--", *ids] if dashed else [*ids, *options]
    return " ".join(map(shell_word, [*words, *rest]))


def shell_word(word: str) -> str:
    """Return a word quoted for a shell; invisible characters need bash, zsh or ksh."""
    from shlex import quote

    if is_safe(word):
        return quote(word)
    escaped = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{_unsafe().sub(_escape_in_shell, escaped)}'"


def _escape_in_shell(match: Match[str]) -> str:
    # Not `\x`, which stands for a byte in a shell, and not for a character.
    return f"\\U{ord(match[0]):08x}"
