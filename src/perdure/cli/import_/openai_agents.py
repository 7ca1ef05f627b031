"""Read the sessions of a database that the OpenAI Agents SDK wrote with its SQLiteSession.

In: the path of a file. Out: the items of each session, as they are. The file is opened for reading
only. Rows that are no items, which the SDK skips silently, are kept as leftovers.
"""

from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec

from perdure.cli.import_.messages import ImportedMessages, Leftover
from perdure.errors import UsageError
from perdure.journal import codec

KIND = "openai-agents-"

BUSY_MS = 5_000  # milliseconds; a writer of the file holds its lock for less

_ROWS = "SELECT session_id, message_data FROM agent_messages ORDER BY id"


class SdkSession(NamedTuple):
    """A session of the database: its id, its rows as they are stored, and its items."""

    id: str
    rows: list[str]
    imported: ImportedMessages


def read_database(path: Path) -> list[SdkSession]:
    """Return the sessions of a database, in the order of their first items.

    UsageError if the file is none, or has not the tables of a SQLiteSession.
    """
    by_session: defaultdict[str, list[str]] = defaultdict(list)
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro"
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        connection = apsw.Connection(uri, flags=flags)
        try:
            connection.set_busy_timeout(BUSY_MS)
            for session, data in connection.execute(_ROWS):
                by_session[str(session)].append(data if isinstance(data, str) else _as_text(data))
        finally:
            connection.close()
    except apsw.Error as error:
        hint = "pass the file of a SQLiteSession, with the table agent_messages"
        raise UsageError(
            f"it cannot be read as a database ({type(error).__name__}): {hint}"
        ) from error
    return [SdkSession(id, rows, _parse(rows)) for id, rows in by_session.items()]


def _as_text(data: Any) -> str:
    return data.decode("utf-8", "replace") if isinstance(data, bytes) else str(data)


def _parse(rows: list[str]) -> ImportedMessages:
    imported = ImportedMessages([], [], [], {})
    for number, row in enumerate(rows, start=1):
        try:
            item = msgspec.json.decode(row.encode())
            codec.encode_tree(codec.Codec().pack(item))
        except (ValueError, UsageError) as error:  # A surrogate is a ValueError.
            reason = f"the row is no JSON that can be stored: {type(error).__name__}"
            imported.leftovers.append(
                Leftover(number, 0, reason, _as_text(row.encode("utf-8", "replace")))
            )
            continue
        if isinstance(item, dict):
            imported.messages.append(item)
        else:
            imported.leftovers.append(Leftover(number, 0, "the row is no item", row))
    return imported


def is_opaque(item: dict[str, Any]) -> bool:
    """Return whether an item has no known format, such as one that the SDK encrypted."""
    return "role" not in item and not isinstance(item.get("type"), str)
