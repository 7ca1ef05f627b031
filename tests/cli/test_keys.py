"""`perdure keys`, and the other commands on an encrypted store."""

import stat
from pathlib import Path

import pytest

import perdure
from perdure.keys import SecretKey, master_key
from tests.cli.support import fill, invoke, objects, said
from tests.sealing import KEY, OTHER_KEY

pytest.importorskip("cryptography")

GIVEN = {"PERDURE_KEYS": "env:A_KEY", "A_KEY": KEY.hex()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with perdure.open(tmp_path / "agents.db", keys=KEY) as store:
        for name in ("one", "two"):
            session = store.session(name)
            session.append(said(f"hello from {name}"), said("hi", "assistant"))
            session.label("vip")
            session.describe(customer=f"c-{name}")
    return tmp_path / "agents.db"


def test_a_new_key_is_printed_alone_and_can_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    done = invoke(None, "keys", "new")
    monkeypatch.setenv("A_KEY", done.stdout)
    assert isinstance(master_key("env:A_KEY"), SecretKey)
    assert "Keep a copy" in done.stderr
    assert invoke(None, "keys", "new").stdout != done.stdout


def test_a_new_key_in_a_file_is_for_its_owner_only(tmp_path: Path) -> None:
    place = tmp_path / "key"
    done = invoke(None, "keys", "new", "--file", str(place))
    assert isinstance(master_key(f"file:{place}"), SecretKey)
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert place.read_text().strip() not in done.output
    before = place.read_bytes()
    again = invoke(None, "keys", "new", "--file", str(place))
    assert (again.exit_code, place.read_bytes()) == (2, before)
    assert "exists" in again.stderr


def test_keys_are_listed_without_any_key(path: Path) -> None:
    done = invoke(path, "keys", "list")
    assert done.exit_code == 0
    assert "1 wrapping key, 2 data keys" in done.stdout
    rows = objects(invoke(path, "keys", "list", "--json"))
    assert [(row["session"], row["state"]) for row in sorted(rows, key=str)]
    assert {row["session"] for row in rows} == {"one", "two"}
    assert {row["state"] for row in rows} == {"live"}


def test_a_plain_store_has_no_keys(tmp_path: Path) -> None:
    done = invoke(fill(tmp_path / "plain.db"), "keys", "list")
    assert (done.exit_code, "is not encrypted" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    "command", [["ls"], ["show", "one"], ["tail", "one"], ["verify"], ["effects", "one"]]
)
def test_commands_take_the_keys_of_a_store(path: Path, command: list[str]) -> None:
    assert invoke(path, *command, **GIVEN).exit_code == 0
    by_option = invoke(path, *command, "--keys", "env:A_KEY", A_KEY=KEY.hex())
    assert by_option.exit_code == 0
    refused = invoke(path, *command)
    assert (refused.exit_code, "without keys" in refused.stderr) == (3, True)
    wrong = invoke(path, *command, PERDURE_KEYS="env:A_KEY", A_KEY=OTHER_KEY.hex())
    assert (wrong.exit_code, "is not the one" in wrong.stderr) == (3, True)


def test_a_listing_shows_and_finds_labels_and_fields(path: Path) -> None:
    (row,) = objects(invoke(path, "ls", "--where", "customer=c-two", "--json", **GIVEN))
    assert (row["id"], row["labels"], row["fields"]) == ("two", ["vip"], {"customer": "c-two"})
    done = invoke(path, "ls", "--label", "vip", "--recent", "--deleted", **GIVEN)
    assert "one" in done.stdout
    assert "\x01" not in done.stdout
    assert "labels vip" in invoke(path, "show", "one", **GIVEN).stdout
    order = invoke(path, "ls", "--order", "customer", **GIVEN)
    assert (order.exit_code, "encrypted" in order.stderr) == (3, True)


def test_a_copy_needs_no_key_and_brings_them_along(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    done = invoke(None, "copy", str(path), str(copy))
    assert (done.exit_code, "copied 2 sessions" in done.stdout) == (0, True)
    assert "hello from one" in invoke(copy, "show", "one", **GIVEN).stdout
    one = tmp_path / "one.db"
    assert invoke(None, "copy", str(path), str(one), "--session", "one").exit_code == 0
    assert "hello from one" in invoke(one, "show", "one", **GIVEN).stdout
    assert len(objects(invoke(one, "keys", "list", "--json"))) == 1
    final = invoke(None, "copy", "--final", str(path), str(copy), "--json")
    (result,) = objects(final)
    assert (result["complete"], result["of_sessions"]) == (True, 2)


def test_a_copy_never_mixes_encrypted_and_plain_sessions(path: Path, tmp_path: Path) -> None:
    plain = fill(tmp_path / "plain.db")
    for source, target in ((path, plain), (plain, path)):
        done = invoke(None, "copy", str(source), str(target))
        assert (done.exit_code, "encrypted" in done.stderr) == (3, True)
    with perdure.open(tmp_path / "other.db", keys=KEY) as store:
        store.session("x").append(said("x"))
    done = invoke(None, "copy", str(path), str(tmp_path / "other.db"))
    assert (done.exit_code, "different keys" in done.stderr) == (3, True)
    done = invoke(None, "copy", str(path), str(tmp_path / "new.db"), "--label", "vip")
    assert (done.exit_code, "labels" in done.stderr) == (3, True)


def test_keys_in_another_store_are_named_by_an_option(tmp_path: Path) -> None:
    path, place = tmp_path / "agents.db", tmp_path / "keys.db"
    with perdure.open(path, keys=KEY, key_store=place) as store:
        store.session("one").append(said("x"))
    done = invoke(path, "show", "one", "--key-store", str(place), **GIVEN)
    assert done.exit_code == 0
    assert "in another store" in invoke(path, "keys", "list", "--key-store", str(place)).stdout
    assert "key_store" in invoke(path, "show", "one", **GIVEN).stderr


def test_keys_are_rotated_to_another_master_key(path: Path) -> None:
    done = invoke(path, "keys", "rotate", "--new-keys", "env:NEW", NEW=OTHER_KEY.hex(), **GIVEN)
    assert (done.exit_code, "2 of 2 data keys wrapped again" in done.stdout) == (0, True)
    assert invoke(path, "show", "one", **GIVEN).exit_code == 3
    given = {"PERDURE_KEYS": "env:NEW", "NEW": OTHER_KEY.hex()}
    assert "hello from one" in invoke(path, "show", "one", **given).stdout
    # As after an interruption: the same command again.
    again = invoke(path, "keys", "rotate", "--new-keys", "env:NEW", NEW=OTHER_KEY.hex(), **GIVEN)
    assert again.exit_code == 0
    assert invoke(path, "keys", "rotate", **GIVEN).exit_code == 3
    bad = invoke(path, "keys", "rotate", "--new-keys", "env:NO_SUCH", **given)
    assert (bad.exit_code, "no variable" in bad.stderr) == (3, True)
