"""P6 and P7 for a directory of files: what is changed in it is an error, and never an answer."""

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import perdure
from perdure.backends.files.backend import FilesBackend
from perdure.backends.files.format import file_stem
from perdure.backends.protocol import Entry
from perdure.errors import DamagedError, PerdureError, UnavailableError
from perdure.testing.contract.samples import append_all, append_of, entries, entry

MEMORY = Path("/dev/shm")  # noqa: S108 - a file system in memory, where a sync costs nothing.
NAMES = ["a stream", "another"]
DRAW = random.Random(6)
SHARE = 0.12  # Of all changes, those that are tried.


@pytest.fixture
def folder() -> Iterator[Path]:
    parent = MEMORY if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="perdure-", dir=parent) as name:
        yield Path(name)


def build(path: Path) -> FilesBackend:
    backend = FilesBackend(path)
    append_all(backend, append_of(NAMES[0], 1, 2, "tag"), append_of(NAMES[1], 1, 1))
    append_all(backend, append_of(NAMES[0], 3, 3, "tag"))
    last = [Entry(4, b"[4]", b"\0\xff"), entry(5)]
    append_all(backend, append_of(NAMES[0], 4, 5, "last")._replace(entries=last))
    return backend


@pytest.fixture
def backend(folder: Path) -> FilesBackend:
    return build(folder / "store")


def file_of(folder: Path, text: bytes) -> Path:
    (found,) = (one for one in folder.rglob("*.jsonl") if text in one.read_bytes())
    return found


@pytest.fixture
def file(backend: FilesBackend, folder: Path) -> Path:
    return file_of(folder, b'"a stream"')


Answer = tuple[list[object], str]


def asked(question: Callable[[], Iterator[object]]) -> Answer:
    """Return what came, and the error that ended it."""
    came: list[object] = []
    try:
        for one in question():
            came.append(one)  # noqa: PERF402 - list() would lose what came before an error.
    except PerdureError as error:
        return came, type(error).__name__
    return came, ""


def answers(path: Path) -> list[Answer]:
    """Ask everything."""
    try:
        backend = FilesBackend(path)
    except PerdureError as error:
        return [([], type(error).__name__)]
    questions: list[Callable[[], Iterator[object]]] = [
        backend.streams,
        lambda: backend.streams(labels=["last"]),
    ]
    for name in NAMES:
        questions += [
            lambda name=name: backend.read(name),  # type: ignore[misc]
            lambda name=name: backend.read(name, reverse=True),  # type: ignore[misc]
            lambda name=name: backend.read(name, after=2, max_body=3),  # type: ignore[misc]
        ]
    return [asked(question) for question in questions]


def faults(found: list[Answer], good: list[Answer]) -> list[str]:
    """Return where less or something else came, and nobody said so."""
    if len(found) != len(good):
        return [] if found[0][1] else ["no answer and no error"]
    return [
        f"question {number}: {came} {error}"
        for number, ((came, error), (wanted, _)) in enumerate(zip(found, good, strict=True))
        if came != (wanted[: len(came)] if error else wanted)
    ]


def mutations(content: bytes) -> Iterator[tuple[str, bytes]]:
    for at in range(len(content)):
        flipped = content[at] ^ 1 << DRAW.randrange(8)
        yield f"flip {at}", content[:at] + bytes([flipped]) + content[at + 1 :]
        yield f"zero {at}", content[:at] + b"\0" + content[at + 1 :]
        yield f"cut {at}", content[:at]


def test_no_changed_byte_and_no_cut_is_ever_silent(folder: Path) -> None:
    path = folder / "store"
    build(path)
    good = answers(path)
    assert [error for _, error in good] == [""] * 8
    original = {one: one.read_bytes() for one in path.rglob("*") if one.is_file()}
    bad, tried, silent = [], 0, 0
    for one, content in original.items():
        for what, changed in mutations(content):
            if DRAW.random() > SHARE:
                continue
            one.write_bytes(changed)
            found = answers(path)
            bad += [f"{one.name} {what}: {fault}" for fault in faults(found, good)]
            tried += 1
            silent += not any(error for _, error in found)
            for each, was in original.items():
                if each.read_bytes() != was:
                    each.write_bytes(was)
    assert bad == []
    assert tried > 2000 * SHARE
    assert silent < 0.5 * tried, "lists of names, and marks, can be lost without loss"


def test_a_stream_that_is_cut_anywhere_is_damaged_and_begins_as_it_did(
    backend: FilesBackend, file: Path
) -> None:
    content = file.read_bytes()
    good = list(backend.read(NAMES[0]))
    came: list[object] = []
    for size in range(len(content)):
        file.write_bytes(content[:size])
        came, error = asked(lambda: backend.read(NAMES[0]))
        assert error == "DamagedError", size
        assert came == good[: len(came)]
        with pytest.raises(DamagedError):
            backend.append([append_of(NAMES[0], 6, 6)])
    assert len(came) == 4, "everything up to the entry that was cut"
    file.write_bytes(content)
    assert list(backend.read(NAMES[0])) == good


def test_what_can_be_read_after_damage_is_read_by_whoever_begins_there(
    backend: FilesBackend, file: Path
) -> None:
    file.write_bytes(file.read_bytes().replace(b'"position":2', b'"position":7'))
    with pytest.raises(DamagedError) as caught:
        list(backend.read(NAMES[0]))
    assert caught.value.position == 2
    assert asked(lambda: backend.read(NAMES[0]))[0] == entries(1, 1)
    assert [one.position for one in backend.read(NAMES[0], after=2)] == [3, 4, 5]
    own = b'{"perdure":[3,'
    file.write_bytes(file.read_bytes().replace(own, own.replace(b"3", b"9")))
    assert [one.position for one in backend.read(NAMES[0], after=3)] == [4, 5]
    with pytest.raises(DamagedError) as caught:
        list(backend.read(NAMES[0], after=2))
    assert caught.value.position == 3
    with pytest.raises(DamagedError):
        backend.drop(NAMES[0], before=2)
    backend.drop(NAMES[0], before=4)
    assert [one.position for one in backend.read(NAMES[0])] == [4, 5]


@pytest.mark.parametrize(
    "edit",
    [
        lambda text: text.replace(b'["",3]', b'["",8]'),
        lambda text: text.replace(b'["",3]', b'["",333]'),
        lambda text: text.replace(b'["",3]\n', b'["",3]\n\n'),
        lambda text: b"".join(text.splitlines(keepends=True)[:-1]),
        lambda text: b"".join(text.splitlines(keepends=True)[1:]),
        lambda text: b"".join(sorted(text.splitlines(keepends=True))),
        lambda text: text.replace(b"a stream", b"b stream"),
        lambda text: text.replace(b"\n", b"\r\n"),
        lambda _: b"",
    ],
    ids=[
        "another body",
        "a longer body",
        "a line more",
        "a line less at the end",
        "no first line",
        "sorted",
        "another name",
        "another line end",
        "emptied",
    ],
)
def test_a_file_that_was_edited_by_hand_is_damaged(
    backend: FilesBackend, file: Path, edit: Callable[[bytes], bytes]
) -> None:
    good = list(backend.read(NAMES[0]))
    content = file.read_bytes()
    assert edit(content) != content
    file.write_bytes(edit(content))
    came, error = asked(lambda: backend.read(NAMES[0]))
    assert error == "DamagedError"
    assert came == good[: len(came)]
    assert list(backend.read(NAMES[1])) == entries(1, 1), "the other stream is as it was"


@pytest.mark.parametrize("lost", ["a bit of the name", "the first sector", "its end"])
def test_without_its_first_line_a_stream_is_damaged_but_each_entry_can_be_read(
    backend: FilesBackend, file: Path, lost: str
) -> None:
    good = list(backend.read(NAMES[0]))
    content = bytearray(file.read_bytes())
    end = content.index(b"\n")
    if lost == "the first sector":  # With the first batch, and the beginning of the next.
        content[:512] = bytes(512)
    else:
        content[end if lost == "its end" else content.index(b"a stream")] ^= 1
    file.write_bytes(content)
    readable = good[{"a bit of the name": 0, "its end": 2, "the first sector": 3}[lost] :]
    assert asked(lambda: backend.read(NAMES[0])) == (readable, "DamagedError")
    # From the end, each batch says where the one before it begins.
    back = good if lost == "its end" else readable
    assert asked(lambda: backend.read(NAMES[0], reverse=True)) == (back[::-1], "DamagedError")
    for one in readable:
        assert list(backend.read(NAMES[0], after=one.position - 1, limit=1)) == [one]
    for use in (
        lambda: backend.append([append_of(NAMES[0], 6, 6)]),
        lambda: backend.drop(NAMES[0], before=3),
        lambda: list(backend.streams()),
    ):
        with pytest.raises(DamagedError):
            use()
    assert file.read_bytes() == content


def test_a_session_in_a_file_whose_end_was_damaged_can_be_salvaged(folder: Path) -> None:
    with perdure.open(f"files:{folder / 'state'}") as store:
        for number in range(3):
            store.session("a").append({"role": "user", "content": f"{number}"})
        file = file_of(folder, b'"name":"a"')
        content = file.read_bytes()
        last = content.rindex(b'{"perdure":[')
        for spoiled in (content[: last + 9], content[:-3], content[:last] + content[last + 1 :]):
            file.write_bytes(spoiled)
            with pytest.raises(DamagedError) as caught:
                store.resume("a")
            assert caught.value.position == 3
            damaged: list[DamagedError] = []
            records = list(store.records("a", on_damage=damaged.append))
            assert [record.position for record in records] == [1, 2]
            assert {error.position for error in damaged} == {3}
            with pytest.raises(DamagedError):
                list(store.records("a"))


def test_batches_that_were_exchanged_or_repeated_are_damaged(
    backend: FilesBackend, folder: Path
) -> None:
    for position in range(1, 8):
        append_all(backend, append_of("even", position, position))
    file = file_of(folder, b'"even"')
    first, *lines = file.read_bytes().splitlines(keepends=True)
    batches = [b"".join(lines[number : number + 2]) for number in range(0, 14, 2)]
    assert len({len(one) for one in batches[1:]}) == 1
    for one in range(1, 6):
        for other in range(one + 1, 7):
            for changed in ({one: other, other: one}, {one: other}):
                moved = [batches[changed.get(number, number)] for number in range(7)]
                file.write_bytes(first + b"".join(moved))
                came, error = asked(lambda: backend.read("even"))
                assert (came, error) == (entries(1, one), "DamagedError")
                came, error = asked(lambda: backend.read("even", reverse=True))
                assert error == "DamagedError"
                assert came == entries(1, 7)[::-1][: len(came)]
    file.write_bytes(first + b"".join(batches))
    assert list(backend.read("even")) == entries(1, 7)


def test_a_torn_line_of_a_list_does_not_swallow_the_next_one(
    backend: FilesBackend, file: Path
) -> None:
    names = file.parent / "names"
    names.write_bytes(names.read_bytes() + b'["torn')
    tries = (str(number) for number in range(99999))
    name = next(one for one in tries if file_stem(one.encode()).startswith(file.parent.name))
    append_all(backend, append_of(name, 1, 1))
    line = f'["{name}","{file_stem(name.encode())}"]'
    assert line in names.read_text("utf-8").splitlines()


def test_files_that_were_exchanged_are_damaged(
    backend: FilesBackend, file: Path, folder: Path
) -> None:
    other = file_of(folder, b'"another"')
    mine, theirs = file.read_bytes(), other.read_bytes()
    file.write_bytes(theirs)
    other.write_bytes(mine)
    for name in NAMES:
        with pytest.raises(DamagedError, match="names another stream"):
            list(backend.read(name))
        with pytest.raises(DamagedError):
            backend.append([append_of(name, 2, 2)])


def test_a_file_that_is_gone_is_damage_and_not_an_empty_stream(
    backend: FilesBackend, file: Path
) -> None:
    file.unlink()
    for one in (backend, FilesBackend(backend._root)):
        with pytest.raises(DamagedError, match="missing"):
            list(one.read(NAMES[0]))
        with pytest.raises(DamagedError, match="missing"):
            list(one.streams())
        with pytest.raises(DamagedError, match="missing"):
            one.append([append_of(NAMES[0], 1, 1)])
        with pytest.raises(DamagedError, match="missing"):
            one.drop(NAMES[0], before=2)
    assert list(backend.read("unknown")) == []


@pytest.mark.parametrize("spoil", ["cut", "remove", "garbage", "torn"])
def test_names_that_are_lost_are_found_again(
    backend: FilesBackend, folder: Path, spoil: str
) -> None:
    for names in folder.rglob("names"):
        if spoil == "remove":
            names.unlink()
        else:
            text = names.read_bytes()
            names.write_bytes(
                {"cut": b"", "garbage": b"\xff\0" + text[1:], "torn": text[:9]}[spoil]
            )
    again = FilesBackend(folder / "store")
    for one in (backend, again):
        assert [head.stream for head in one.streams()] == NAMES
    assert append_all(again, append_of("new", 1, 1)) == ["stored"]
    assert append_all(again, append_of("stream 128", 1, 1)) == ["stored"]
    if spoil != "remove":
        assert all(b"\n[" in b"\n" + one.read_bytes() for one in folder.rglob("names"))
    wanted = sorted([*NAMES, "new", "stream 128"])
    assert [head.stream for head in FilesBackend(folder / "store").streams()] == wanted


def test_a_file_that_nobody_can_name_ends_every_listing_with_an_error(
    backend: FilesBackend, file: Path
) -> None:
    (file.parent / "names").write_bytes(b"")
    file.write_bytes(b"x" + file.read_bytes()[1:])
    came, error = asked(FilesBackend(backend._root).streams)
    assert [head.stream for head in came] == ["another"]  # type: ignore[attr-defined]
    assert error == "DamagedError"


def test_a_torn_tail_is_not_shown_and_is_set_aside_before_the_next_append(
    backend: FilesBackend, file: Path
) -> None:
    good = list(backend.read(NAMES[0]))
    size = file.stat().st_size
    torn = b'{"perdure":[6,123,[[24,6,"' + b"\0" * 300
    with file.open("ab") as opened:
        opened.write(torn)
    assert list(backend.read(NAMES[0])) == good
    assert file.stat().st_size == size + len(torn), "a reader changes nothing"
    assert append_all(backend, append_of(NAMES[0], 6, 6)) == ["stored"]
    aside = file.with_name(file.stem + ".torn-1")
    assert aside.read_bytes() == torn
    assert aside.stat().st_mode & 0o777 == 0o600
    assert list(backend.read(NAMES[0])) == [*good, entry(6)]
    with file.open("ab") as opened:
        opened.write(b"again")
    assert append_all(backend, append_of(NAMES[0], 7, 7)) == ["stored"]
    assert file.with_name(file.stem + ".torn-2").read_bytes() == b"again"
    assert aside.read_bytes() == torn


def test_a_batch_that_lost_only_its_mark_is_kept_and_a_torn_one_before_it_is_damage(
    backend: FilesBackend, file: Path, folder: Path
) -> None:
    good = list(backend.read(NAMES[0]))
    first_line = file.read_bytes().splitlines(keepends=True)[0]
    append_all(backend, append_of(NAMES[0], 6, 6))
    append_all(backend, append_of(NAMES[0], 7, 7))
    rest = file.read_bytes()[len(first_line) :]
    file.write_bytes(first_line + rest)
    shutil.copytree(folder / "store", folder / "copy")
    assert list(backend.read(NAMES[0])) == [*good, *entries(6, 7)]
    assert file.read_bytes().splitlines(keepends=True)[0] != first_line, "it is marked now"
    copy = FilesBackend(folder / "copy")
    path = file_of(folder / "copy", b'"a stream"')
    path.write_bytes(first_line + rest.replace(b'["",6]', b'["",0]'))
    for use in (
        lambda: list(copy.read(NAMES[0])),
        lambda: append_all(copy, append_of(NAMES[0], 8, 8)),
    ):
        with pytest.raises(DamagedError) as caught:
            use()
        assert caught.value.position == 6
    path.write_bytes(first_line + rest.replace(b'["",7]', b'["",0]'))
    assert list(copy.read(NAMES[0])) == [*good, entry(6)]


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="needs links")
def test_links_and_pipes_are_not_followed(backend: FilesBackend, file: Path, folder: Path) -> None:
    elsewhere = folder / "elsewhere"
    file.rename(elsewhere)
    content = elsewhere.read_bytes()
    makers: list[Callable[[], object]] = [
        lambda: file.symlink_to(elsewhere),
        lambda: os.mkfifo(file),
        file.mkdir,
    ]
    for make in makers:
        make()
        for use in (
            lambda: list(backend.read(NAMES[0])),
            lambda: backend.append([append_of(NAMES[0], 6, 6)]),
            lambda: backend.drop(NAMES[0], before=3),
        ):
            with pytest.raises((DamagedError, UnavailableError)):
                use()
        file.rmdir() if file.is_dir() else file.unlink()
    elsewhere.rename(file)
    assert file.read_bytes() == content
    assert len(list(backend.read(NAMES[0]))) == 5
    file.parent.rename(folder / "folder")
    file.parent.symlink_to(folder / "folder")
    with pytest.raises(DamagedError, match="not a directory"):
        list(backend.read(NAMES[0]))
    with pytest.raises(DamagedError, match="not a directory"):
        list(backend.streams())
    with pytest.raises(DamagedError, match="not a directory"):
        backend.append([append_of(NAMES[0], 6, 6)])
    assert file.read_bytes() == content
