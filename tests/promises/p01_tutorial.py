"""The control of P1: messages saved as tutorials show it, in the same power failures.

`json.dump` of the whole list to the same path after each message, with no other file and no sync.
"""

import itertools
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

from tests.promises.calls import recording_in
from tests.promises.disk import Disk
from tests.promises.tree import Tree
from tests.promises.watched_files import WatchedFiles

NAME = "messages.json"
MESSAGES = 40
BUFFER = 8192  # What an open text file hands over at once.
TEARS = 4  # Random states per moment.
# Of the eight states of a moment, the one in which everything happened to reach the disk is good,
# and about one of those that are drawn.
NEARLY_ALWAYS = 0.7

Messages = list[dict[str, str]]


def save(disk: WatchedFiles, path: Path, messages: Messages) -> None:
    """As `with open(path, "w") as file: json.dump(messages, file)`, through a disk."""
    with disk.open(str(path), os.O_RDWR | os.O_CREAT) as file:
        disk.truncate(file.fileno(), 0)
        data = json.dumps(messages).encode()
        for at in range(0, len(data), BUFFER):
            disk.write(file.fileno(), data[at : at + BUFFER], at)


def failures(directory: Path, seed: int) -> Iterator[list[str]]:
    """Save message after message; yield what each power failure right after one leaves.

    "" is all messages, anything else is what a program finds instead.
    """
    draw = random.Random(seed)
    tree = Tree()
    disk = WatchedFiles(directory, recording_in(tree.apply))
    messages: Messages = []
    for number in range(MESSAGES):
        messages.append({"role": "user", "content": f"Message {number}. " * 30})
        save(disk, directory / NAME, messages)
        yield [_found(content, messages) for content in _left(tree, draw)]
    (directory / NAME).unlink()


def _left(tree: Disk, draw: random.Random) -> Iterator[bytes | None]:
    plain = [tree.drop(), tree.keep(), tree.names_only(), tree.files_only()]
    for crash in [*plain, *(tree.torn(draw) for _ in range(TEARS))]:
        yield crash.files.get(NAME)


def _found(content: bytes | None, messages: Messages) -> str:
    if content is None:
        return "lost: no file"
    try:
        found = json.loads(content)
    except ValueError:
        return "corrupt: no JSON"
    return "" if found == messages else f"lost: {len(found)} messages of {len(messages)}"


def is_safe(directory: Path, seed: int) -> str:
    """Say so if messages survive: then the trials would not see a loss. "" if they do not."""
    found = list(failures(directory, seed))
    share = sum(map(bool, itertools.chain.from_iterable(found))) / sum(map(len, found))
    if share > NEARLY_ALWAYS and all(map(any, found)):
        return ""
    return f"{share:.0%} of what a power failure leaves is lost or corrupt, nearly all should be"
