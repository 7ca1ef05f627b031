"""Write the golden stores of this version, and the vectors for readers in other languages.

    python -m tests.golden.make

One folder for each version of the format: `vectors.json`, and a store of each backend that keeps
one, compressed. Once a version is released, its folder never changes: a new layout of a backend
gets another file name. Tests open all of them for ever.
"""

import gzip
import json
import os
import sys
import tempfile
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec

import perdure
from perdure.backends.files.backend import FilesBackend
from perdure.backends.memory import MemoryBackend
from perdure.backends.protocol import Append, Backend
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.journal.codec import Codec
from tests.golden import postgres_rows, redis_keys
from tests.golden.build import Streams, build

FOLDER = Path(__file__).parent / "format-1"

VALUES: list[Any] = [
    *(None, True, 0, -1, 2**53 - 1, 2**53, -(2**64), 0.1, 1e300, "", 'ü💧\n\t\x00"\\', [], {}),
    *(b"", b"\x00\xff", Decimal("1.50"), Decimal("-1E+9"), UUID(int=7), date(2026, 11, 16)),
    datetime(2026, 11, 16, 12, 30, 0, 250, tzinfo=UTC),
    datetime(2026, 11, 16, 12, 30, tzinfo=timezone(timedelta(hours=2), "X")),
    datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
    *({"$bytes": "no tag"}, {"$object": {}}, {"$x": 1, "$y": 2}, {"deep": [{"n": b"\x01"}]}),
]


def lay_out(backend: Backend, streams: Streams) -> None:
    """Put the streams into a store, each with one append."""
    for name, (head, entries) in streams.items():
        (outcome,) = backend.append([Append(name, entries, head.labels, snapshot=head.snapshot)])
        if outcome.status != "stored":
            raise AssertionError(f"{name}: {outcome}")


def vectors(streams: Streams) -> dict[str, Any]:
    """Return the entries of all streams, and other input for a reader, as JSON."""
    items: dict[str, list[dict[str, Any]]] = {
        name: [
            {"position": entry.position, "header": entry.header.decode(), "body": _text(entry.body)}
            for entry in entries
        ]
        for name, (_, entries) in streams.items()
    }
    pack = Codec().pack
    (first, *_) = items["parent"]
    return {
        "streams": items,
        "scalars": [pack(value) for value in VALUES],
        "headers": _headers(first["header"]),
    }


def _text(body: bytes | None) -> str:
    return (body or b"").decode()


def _headers(good: str) -> list[str]:
    """Return a good header, and others that are damaged or newer."""
    changes = [
        *(("[1,", "[2,"), ("[1,", "[0,"), ("[1,", "[100,"), ("[1,", "[1, "), ("[1,", "[1.0,")),
        *(
            ('"plain"', '"pl\\u0061in"'),
            (',"",["","parent"]', ',"",null'),
            ('["","parent"]', '["parent"]'),
        ),
        *(("]]]", "]] ]"), ("]]]", ']],"more"]'), ("]]]", ',"k"]]]'), ("]]]", ',"k","more"]]]')),
        *(
            ('["message"', '["deleted"'),
            ("[[", "[1,["),
            (",1,", ",2,"),
            (",1,", ",-1,"),
            ("]]]", "]]"),
        ),
        *(("[1,", '{"a":'), ('"message"', '"~anything"')),
    ]
    changed = [good.replace(old, new, 1) for old, new in changes]
    if good in changed:
        raise AssertionError(f"no change: {changes[changed.index(good)]}")
    return [good, "", "[]", "null", "7", *changed]


def write(path: Path, data: bytes) -> None:
    """Write a compressed file, the same to the byte each time."""
    path.write_bytes(gzip.compress(data, 9, mtime=0))


def files_of(root: Path) -> dict[str, str]:
    """Return the text of all files in a directory, by their paths."""
    return {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def main() -> None:
    """Write everything again."""
    streams = build()
    FOLDER.mkdir(exist_ok=True)
    text = json.dumps(vectors(streams), indent=0, ensure_ascii=False)
    (FOLDER / "vectors.json").write_text(text + "\n", encoding="utf-8")
    with tempfile.TemporaryDirectory() as name:
        sqlite, files = SqliteBackend(Path(name) / "store.db"), FilesBackend(Path(name) / "files")
        packed = SqliteBackend(Path(name) / "packed.db", compress="zstd")
        for backend in (sqlite, files, packed):
            lay_out(backend, streams)
            backend.close()
        write(FOLDER / "sqlite.db.gz", (Path(name) / "store.db").read_bytes())
        write(FOLDER / "sqlite-zstd.db.gz", (Path(name) / "packed.db").read_bytes())
        write(FOLDER / "files.json.gz", msgspec.json.encode(files_of(Path(name) / "files")))
    for name, rows in (("postgres", postgres_rows), ("redis", redis_keys)):
        data = rows.dump(lambda backend: lay_out(backend, streams))
        write(FOLDER / f"{name}.jsonl.gz", data)
    memory = MemoryBackend()
    lay_out(memory, streams)
    verified = perdure.open(memory).verify()
    sizes = {path.name: path.stat().st_size for path in sorted(FOLDER.iterdir())}
    sys.stdout.write(f"{verified.sessions} sessions, {verified.records} records: {sizes}\n")
    if not verified.ok:
        raise SystemExit(str(verified.problems))


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # The order of labels depends on it.
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        os.execve(sys.executable, [sys.executable, "-m", "tests.golden.make"], environment)  # noqa: S606
    main()
