"""Save the readable records of damaged sessions, read from their store or from its bare pages."""

import json
import os
from base64 import b64encode
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Self, TextIO

from perdure.backends.filesystem import open_private
from perdure.backends.protocol import HALF_COPIED, Head
from perdure.cli.rendering import damage_json, record_json
from perdure.cli.salvage import rebuilt
from perdure.cli.stores import opened
from perdure.cli.verify.view import SessionResult
from perdure.errors import DamagedError, NotFoundError, VersionError
from perdure.journal.parts import Part
from perdure.sync.store import Store
from perdure.sync.verify import list_heads


class SalvageFile:
    """Saves records to a file, which is created with the first record."""

    def __init__(self, target: str | None) -> None:
        self._target = target
        self._file: TextIO | None = None

    def write(self, line: dict[str, Any]) -> None:
        if self._target is None:
            return
        if self._file is None:
            self._file = open(self._target, "x", encoding="ascii", opener=open_private)  # noqa: SIM115 - Path has no opener; see __exit__
        self._file.write(json.dumps(line) + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()


def examine_damage(
    store: Store, session: str, first_error: DamagedError | None, salvage: SalvageFile
) -> SessionResult:
    """Read as much of a damaged session as possible, and save it.

    `first_error` is reported if reading finds no damage.
    """
    damage: list[DamagedError] = []
    saved = 0
    try:
        for record in store.records(session, on_damage=damage.append):
            line = record_json(session, record)
            if isinstance(record.content, Part):
                line["content"]["data"] = _read_part(record.content, damage)
            salvage.write(line)
            saved += 1
    except DamagedError as error:
        damage.append(error)
    except (NotFoundError, VersionError) as error:
        damage.append(DamagedError(session, 0, str(error)))
    if not damage and first_error is not None:
        damage = [first_error]
    # The same damage can be reported more than once.
    problems = list({(problem.position, problem.reason): problem for problem in damage}.values())
    for problem in problems:
        salvage.write(damage_json(session, problem))
    return SessionResult(session, "damaged", None, tuple(problems), saved)


def _read_part(content: Part, damage: list[DamagedError]) -> str | None:
    """Return the bytes of a part in base64, which records that cite it lack; None if damaged."""
    try:
        return b64encode(content.data.read()).decode()
    except NotFoundError:  # It was erased.
        return None
    except DamagedError as error:
        damage.append(error)
        return None


HEAD_LOST = "its head was lost: records after the last readable one may be missing"


def salvage_pages(
    path: Path, salvage: SalvageFile, target: str, intact: Collection[str]
) -> Iterator[SessionResult]:
    """Save what the pages of a damaged SQLite file hold, except for intact sessions."""
    with rebuilt(path, Path(target)) as backend, opened(backend) as copy:
        for head in list_heads(backend):
            if head.stream in intact:
                continue
            is_partial = isinstance(head, Head) and HALF_COPIED in head.labels
            lost = DamagedError(head.stream, 0, HEAD_LOST) if is_partial else None
            result = examine_damage(copy.store, head.stream, lost, salvage)
            yield result._replace(state="salvaged")
