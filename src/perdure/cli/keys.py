"""`perdure keys`: make a master key; list and rotate the keys of an encrypted store."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from perdure.backends.protocol import DELETED
from perdure.cli.stores import (
    InvalidCallError,
    NoMatchError,
    OpenStore,
    StoreCommand,
    open_store,
    store_option,
)
from perdure.cli.terminal import ProgressBar, echo, echo_json, plural
from perdure.errors import WrongKeyError
from perdure.journal import headers, key_store
from perdure.journal.key_store import SealMark, WrappedKey
from perdure.journal.rotation import RotationProgress
from perdure.safe_text import safe, shell_command

NEW_EXAMPLES = """\b
Examples:
  perdure keys new --file /etc/perdure/key
  export PERDURE_KEY="$(perdure keys new)"
"""

ROTATE_EXAMPLES = """\b
Examples:
  perdure keys rotate --store agents.db --keys env:PERDURE_KEY
  perdure keys rotate --keys env:PERDURE_KEY --new-keys file:/etc/perdure/key
"""

LIST_EXAMPLES = """\b
Examples:
  perdure keys list --store agents.db
  perdure keys list --json | jq .session
"""


@click.group(epilog=NEW_EXAMPLES)
def keys() -> None:
    """Make, list and rotate the keys of encrypted stores."""


@keys.command(cls=StoreCommand, epilog=NEW_EXAMPLES)
@click.option("--file", "path", metavar="PATH", help="Write it to a new file, for its owner only.")
def new(path: str | None) -> None:
    """Make a master key of 32 random bytes, and print it in base64.

    Keep a copy apart from the store and its backups: without the key, nothing in the store can be
    read again.
    """
    from perdure.keys import new_key

    key = new_key()
    if path is None:
        click.echo(key)
        echo("Keep a copy apart from the store: what it encrypts is lost without it.", err=True)
        echo("Set it as PERDURE_KEY, and open stores with keys='env:PERDURE_KEY'.", err=True)
        return
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise InvalidCallError(f"{path} exists: nothing was written. Name a new file.") from error
    with os.fdopen(file, "w") as out:
        out.write(key + "\n")
        out.flush()
        os.fsync(out.fileno())
    name = f"file:{Path(path).absolute()}"
    echo(f"A new key is in {safe(path)}. Keep a copy apart from the store and its backups.")
    echo(f"Open stores with keys={name!r}, or {shell_command('--keys', name)}.")


@keys.command(cls=StoreCommand, epilog=ROTATE_EXAMPLES)
@click.option(
    "--new-keys", metavar="SOURCE", help="Another master key from now on, such as file:PATH."
)
@store_option
def rotate(address: str | None, new_keys: str | None) -> None:
    """Wrap the keys of an encrypted store by a new wrapping key.

    No record is read or written, and sessions can be used meanwhile. If it is interrupted, repeat
    the same command. With --new-keys, give all processes the new key afterwards.
    """
    from perdure.keys import master_key

    if new_keys is not None:
        master_key(new_keys)  # Before anything is changed.
    with open_store(address) as source:
        try:
            source.settings  # noqa: B018 - it unlocks the store
        except WrongKeyError:
            if new_keys is None:
                raise
            source.store._master = master_key(new_keys)  # noqa: SLF001 - a rotation was interrupted
        total = len(_names(source))
        with ProgressBar("rotating", "key", lambda: total) as bar:

            def report(progress: RotationProgress) -> None:
                bar.done = progress.seen

            done = source.store.rotate_keys(new_keys, on_progress=report)
        echo(f"{source.name}: {done.wrapped} of {plural(done.seen, 'data key')} wrapped again.")
        if new_keys is not None:
            echo(f"Open it with keys={new_keys!r} from now on.")


def _names(source: OpenStore) -> list[str]:
    names: list[str] = []
    after: str | None = ""
    while after is not None:
        page, after = source.run(key_store.list_names(after=after))
        names += page
    return names


@keys.command("list", cls=StoreCommand, epilog=LIST_EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per key.")
@store_option
def list_keys(address: str | None, *, as_json: bool) -> None:
    """List the data keys of an encrypted store: session, key, state.

    The keys themselves are never shown, and no master key is needed.
    """
    with open_store(address) as source:
        mark = source.run(key_store.find_seal())
        if mark is None:
            raise NoMatchError(f"{source.name} is not encrypted.")
        wrapped = source.run(key_store.require_keys(mark, source.name))
        rows = _rows(source)
        if as_json:
            for row in rows:
                echo_json(row)
            return
        count = {"live": 0, "destroyed": 0}
        for row in rows:
            count[row["state"]] += 1
            echo(f"{row['key']}  {row['state']:<9}  {safe(row['session'] or '(no session)')}")
        _summarize(source, mark, len(wrapped.wrapping), count)


def _summarize(source: OpenStore, mark: SealMark, wrapping: int, count: dict[str, int]) -> None:
    where = "in another store" if mark.elsewhere else "in the store itself"
    texts = [plural(wrapping, "wrapping key"), plural(count["live"], "data key")]
    if count["destroyed"]:
        texts.append(f"{count['destroyed']} destroyed")
    echo(f"{source.name} is encrypted, with its keys {where}: {', '.join(texts)}.")


def _rows(source: OpenStore) -> Iterator[dict[str, Any]]:
    sessions = {}
    for head in source.backend.streams(without=[DELETED], headers=True):
        if stream := headers.stream_of(head):
            sessions[stream] = head.stream
    for name in _names(source):
        stored = source.run(key_store.get(name, WrappedKey))
        if stored is not None and isinstance(stored.content, WrappedKey):
            stream, key = key_store.parse_name(name)
            state = "live" if stored.content.wrapped else "destroyed"
            session, by = sessions.get(stream, ""), stored.content.by
            yield {"key": key, "state": state, "session": session, "wrapped_by": by}
