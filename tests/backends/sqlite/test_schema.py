"""Opening a SQLite store: what is refused, with which words, and that it was not touched."""

import contextlib
import errno
import os
import tempfile
from pathlib import Path

import apsw
import pytest

from perdure.backends import filesystem
from perdure.backends.filesystem import is_shared, is_unc, mounted_type
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.errors import (
    DamagedError,
    PerdureError,
    UnavailableError,
    UnsupportedError,
    UsageError,
    VersionError,
)
from perdure.testing.contract.samples import append_all, append_of, entries

MOUNTINFO = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:21 / /proc rw - proc proc rw
30 22 0:40 / /mnt/nfs rw shared:5 - nfs4 server:/export rw
31 30 0:41 / /mnt/nfs/local rw - xfs /dev/sdb rw
32 22 0:42 / /mnt/with\\040space rw - cifs //server/share rw
33 22 0:43 / /mnt/stick rw - fuseblk /dev/sdc1 rw
34 22 0:44 / /mnt/ssh rw - fuse.sshfs me@there:/ rw
35 22 0:45 / /mnt/over rw - ext4 /dev/sdd rw
36 35 0:46 / /mnt/over rw - 9p host rw
37 22 0:47 / /mnt/guest rw - virtiofs host rw
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def make(path: Path) -> None:
    backend = SqliteBackend(path)
    append_all(backend, append_of("s", 1, 2))
    backend.close()


def is_refused(path: Path, error: type[PerdureError], match: str) -> None:
    before = path.read_bytes()
    with pytest.raises(error, match=match):
        SqliteBackend(path, timeout=0.2)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/srv/store.db", "ext4"),
        ("/mnt/nfs/store.db", "nfs4"),
        ("/mnt/nfs/local/store.db", "xfs"),
        ("/mnt/nfsx/store.db", "ext4"),
        ("/mnt/with space/store.db", "cifs"),
        ("/mnt/stick/store.db", "fuseblk"),
        ("/mnt/ssh/store.db", "fuse.sshfs"),
        ("/mnt/over/store.db", "9p"),
        ("/mnt/guest/store.db", "virtiofs"),
    ],
)
def test_the_longest_and_latest_mount_holds_a_path(path: str, kind: str) -> None:
    assert mounted_type(path, MOUNTINFO) == kind


def test_lines_that_are_no_mounts_are_no_mounts() -> None:
    assert mounted_type("/x", "") == ""
    assert mounted_type("/x", "nonsense\n1 2 3 - ext4\n") == ""


def test_network_file_systems_are_told_from_local_ones() -> None:
    for kind in ["nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "lustre", "fuse.sshfs"]:
        assert is_shared(kind), kind
    for kind in ["ext4", "xfs", "btrfs", "zfs", "overlay", "tmpfs", "fuseblk", "virtiofs", ""]:
        assert not is_shared(kind), kind


def test_windows_shares_are_told_from_drives() -> None:
    for path in [r"\\server\share\x.db", "//server/share/x.db", r"\\?\UNC\server\share\x.db"]:
        assert is_unc(path), path
    for path in [r"C:\x.db", r"\\?\C:\x.db", r"\x.db"]:
        assert not is_unc(path), path


@pytest.mark.parametrize("kind", ["nfs4", "ext4"])
def test_a_network_file_system_is_refused(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(f"22 1 254:0 / / rw - {kind} there rw\n")
    monkeypatch.setattr(filesystem, "MOUNTINFO", table)
    if kind == "ext4":
        make(path)
        return
    with pytest.raises(UnsupportedError, match=r"nfs4.*local disk"):
        SqliteBackend(path)
    assert not path.exists()


@pytest.mark.parametrize("version", ["3.51.2", "3.40.1", "3.7.0"])
def test_a_sqlite_with_the_wal_reset_bug_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: version)
    with pytest.raises(UnsupportedError, match=version):
        SqliteBackend(path)
    assert not path.exists()


@pytest.mark.parametrize("version", ["3.51.3", "3.53.0", "4.0.0"])
def test_a_sqlite_without_that_bug_is_welcome(
    path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: version)
    make(path)
    with contextlib.closing(SqliteBackend(path)) as backend:
        assert list(backend.read("s")) == entries(1, 2)


@pytest.mark.parametrize("size", [1, 15, 100, 511, 512, 5000])
def test_a_file_that_is_not_a_database_is_refused_and_not_touched(path: Path, size: int) -> None:
    path.write_bytes(b"x" * size)
    is_refused(path, DamagedError, "not a database.*nothing was changed")


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    make(path)
    backend = SqliteBackend(path)
    assert list(backend.read("s")) == entries(1, 2)
    backend.close()


def test_an_empty_file_with_a_full_log_is_damage(path: Path) -> None:
    backend = SqliteBackend(path)
    append_all(backend, append_of("s", 1, 2))
    log = Path(f"{path}-wal").read_bytes()
    backend.close()
    path.write_bytes(b"")
    Path(f"{path}-wal").write_bytes(log)
    with pytest.raises(DamagedError, match="-wal is not"):
        SqliteBackend(path)
    assert Path(f"{path}-wal").read_bytes() == log


@pytest.mark.parametrize(
    "sql",
    ["create table t (x)", "pragma user_version = 7", "pragma application_id = 5"],
    ids=["a table", "a version", "an application id"],
)
def test_another_programs_database_is_refused_and_not_touched(path: Path, sql: str) -> None:
    other = apsw.Connection(str(path))
    other.execute(sql)
    other.close()
    is_refused(path, UsageError, "another program")


def test_a_newer_store_is_refused_and_not_touched(path: Path) -> None:
    make(path)
    change(path, "pragma user_version = 2")
    is_refused(path, VersionError, "version 2, this perdure supports 1")


def test_a_store_of_version_0_is_damage(path: Path) -> None:
    make(path)
    change(path, "pragma user_version = 0")
    with pytest.raises(DamagedError, match="its version is 0"):
        SqliteBackend(path)


@pytest.mark.parametrize(
    "sql",
    ["drop table label", "drop index head_name", "alter table entry rename column body to bod"],
)
def test_a_missing_or_altered_table_is_damage(path: Path, sql: str) -> None:
    make(path)
    change(path, sql)
    with pytest.raises(DamagedError, match="missing or altered"):
        SqliteBackend(path)


def test_a_file_without_the_index_of_live_sessions_gets_it(path: Path) -> None:
    """One that was made before there was that index, which older libraries keep up, too."""
    make(path)
    change(path, "drop index head_live")
    backend = SqliteBackend(path)
    assert [head.stream for head in backend.streams(without=["deleted"])] == ["s"]
    assert [head.stream for head in backend.streams()] == ["s"]
    assert append_all(backend, append_of("t", 1, 1)) == ["stored"]  # A reader changes no schema.
    backend.close()
    other = apsw.Connection(str(path))
    assert other.execute("select sql from sqlite_schema where name = 'head_live'").get
    other.close()
    SqliteBackend(path).close()


def test_an_altered_index_is_damage(path: Path) -> None:
    make(path)
    change(path, "drop index head_live; create index head_live on head (name) where id > 0")
    with pytest.raises(DamagedError, match="missing or altered"):
        SqliteBackend(path)


def test_a_table_of_the_users_own_is_left_alone(path: Path) -> None:
    make(path)
    change(path, "create table notes (text)")
    backend = SqliteBackend(path)
    assert list(backend.read("s")) == entries(1, 2)
    backend.close()


def test_triggers_that_were_put_into_a_file_do_not_run(path: Path) -> None:
    make(path)
    change(path, "create trigger evil after insert on entry begin delete from entry; end")
    backend = SqliteBackend(path)
    assert append_all(backend, append_of("s", 3, 3)) == ["stored"]
    assert list(backend.read("s")) == entries(1, 3)
    backend.close()


def change(path: Path, sql: str) -> None:
    other = apsw.Connection(str(path))
    other.execute(sql)
    other.close()


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"there is no directory .*missing.*create it"):
        SqliteBackend(tmp_path / "missing" / "store.db")


def test_a_path_below_a_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnavailableError, match="no directory"):
        SqliteBackend(tmp_path / "file" / "store.db")
    with pytest.raises(UnavailableError, match="is a directory"):
        SqliteBackend(tmp_path)


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_what_is_no_path_is_a_usage_error(path: str) -> None:
    with pytest.raises(UsageError, match="not a path"):
        SqliteBackend(path)


NOBODY = 65534


@pytest.mark.skipif(not hasattr(os, "fork") or os.geteuid() != 0, reason="needs another user")
@pytest.mark.parametrize(("name", "mode"), [("store.db", 0o600), ("new.db", 0o644)])
def test_a_file_or_directory_without_permission_is_unavailable(name: str, mode: int) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        make(Path(folder) / "store.db")
        (Path(folder) / "store.db").chmod(mode)
        child = os.fork()
        if child == 0:
            os.setuid(NOBODY)
            try:
                SqliteBackend(Path(folder) / name, timeout=0.2)
            except UnavailableError as error:
                os._exit(0 if "permission" in str(error) or "may write" in str(error) else 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_many_processes_can_make_the_same_store_at_once(path: Path) -> None:
    children = []
    for number in range(6):
        child = os.fork()
        if child == 0:
            backend = SqliteBackend(path)
            good = append_all(backend, append_of(str(number), 1, 1)) == ["stored"]
            backend.close()
            os._exit(0 if good else 1)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == [0] * 6
    backend = SqliteBackend(path)
    assert len(list(backend.streams())) == 6
    backend.close()


def test_what_is_no_ordinary_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path(os.devnull)):
        with pytest.raises(UsageError, match="pass the path of a regular file"):
            SqliteBackend(path)


def test_a_file_of_another_kind_is_told_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    for text in ("short", "long enough to be taken for one" * 50):
        path.write_text(text)
        with pytest.raises(
            DamagedError, match="pass another path, or restore the store from a backup"
        ):
            SqliteBackend(path)
        assert path.read_text() == text


def test_a_mount_table_that_cannot_be_read_is_a_typed_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when no descriptor is left."""

    class Unreadable:
        exists = tmp_path.exists

        def read_text(self, **_: str) -> str:
            raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(filesystem, "MOUNTINFO", Unreadable())
    with pytest.raises(UnavailableError, match="Too many open files"):
        SqliteBackend(tmp_path / "a.db")
