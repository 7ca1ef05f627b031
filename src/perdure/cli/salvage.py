"""Read a damaged SQLite file page by page into a temporary store, for `verify` and `copy`."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from perdure.backends.addresses import path_of, scheme_of
from perdure.backends.protocol import Entry
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.backends.sqlite.salvage import Journal, rebuild_store
from perdure.errors import PerdureError
from perdure.journal import chain, headers


def sqlite_path(address: str) -> Path | None:
    """Return the path of a SQLite store, None for a store of another kind."""
    return path_of(address) if scheme_of(address)[0] == "sqlite" else None


@contextmanager
def rebuilt(path: Path, beside: Path | None) -> Iterator[SqliteBackend]:
    """Provide a store with all that the pages of a damaged one hold; it is removed afterwards.

    It takes as much space as the file, in the directory of another path or that of the system. The
    damaged store must be closed in this process.
    """
    parent = None if beside is None else beside.absolute().parent
    with tempfile.TemporaryDirectory(prefix=".perdure-salvage-", dir=parent) as folder:
        copy = f"{folder}{os.sep}store.db"
        rebuild_store(os.path.realpath(path), copy, Journal(headers.session_of, _is_right))
        with closing(SqliteBackend(copy)) as backend:
            yield backend


def _is_right(entry: Entry) -> bool:
    try:
        chain.verify_entry("", entry)
    except PerdureError:
        return False
    return True
