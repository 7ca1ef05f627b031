"""`perdure ls`: what is listed, in which order, and what is not opened."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.cells import cell_len

import perdure
from perdure.cli.__main__ import main
from perdure.sync.store import Store
from tests.cli.support import damage, fill, invoke, objects, said, write_as_newer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return fill(tmp_path / "agents.db")


def ids(path: Path, *options: str) -> list[str]:
    return [
        found["id"] for found in objects(invoke(path, "ls", "--json", "--limit", "0", *options))
    ]


def test_sessions_are_listed_with_what_people_ask_about(path: Path) -> None:
    done = invoke(path, "ls")
    assert done.exit_code == 0
    title, claim, empty, branch = done.stdout.splitlines()
    assert " ".join(title.split()) == "session messages position last role last change labels"
    assert claim.split()[:4] == ["claim-4711", "7", "18", "user"]
    assert claim.endswith("turn-open, vip")
    assert empty.split()[:4] == ["empty-handed", "0", "1", "-"]
    assert branch.split()[:4] == ["what-if", "5", "7", "user"]
    assert max(map(cell_len, done.stdout.splitlines())) < 80


def test_json_has_stable_keys_and_exact_times(path: Path) -> None:
    claim, *_ = objects(invoke(path, "ls", "--json"))
    assert claim == {
        "id": "claim-4711",
        "messages": 7,
        "position": 18,
        "last_role": "user",
        "changed": claim["changed"],
        "labels": ["turn-open", "vip"],
        "fields": {},
        "state": "live",
        "damage": None,
        "holder": None,
    }
    with perdure.open(path) as store:
        *_, last = store.records("claim-4711")
    assert claim["changed"] == last.time.isoformat().replace("+00:00", "") + ".000000Z"


def test_sessions_are_chosen_by_prefix_labels_and_deletion(path: Path) -> None:
    everything = ["claim-4711", "empty-handed", "what-if"]
    assert ids(path) == everything
    assert ids(path, "claim") == ["claim-4711"]
    assert ids(path, "--label", "turn-open") == ["claim-4711", "what-if"]
    assert ids(path, "--label", "turn-open", "--label", "vip") == ["claim-4711"]
    assert ids(path, "--deleted") == sorted([*everything, "gone"])
    assert ids(path, "--after", "claim-4711") == everything[1:]
    (gone,) = objects(invoke(path, "ls", "--deleted", "--json", "gone"))
    assert (gone["state"], gone["messages"], gone["labels"]) == ("deleted", 0, ["deleted"])


def test_the_most_recently_changed_comes_first(path: Path) -> None:
    assert ids(path, "--recent") == ["empty-handed", "claim-4711", "what-if"]
    assert ids(path, "--recent", "--deleted")[1] == "gone"
    assert ids(path, "--recent", "--label", "turn-open") == ["claim-4711", "what-if"]
    with perdure.open(path) as store:
        store.session("what-if").note("later")
    assert ids(path, "--recent")[0] == "what-if"


@pytest.mark.parametrize("address", ["sqlite:{}/fields.db", "files:{}/fields"])
def test_sessions_are_found_and_sorted_by_fields(address: str, tmp_path: Path) -> None:
    store_address = address.format(tmp_path)
    with perdure.open(store_address) as store:
        for number in range(4):
            session = store.session(f"s{number}")
            due = datetime(2026, 11, 18 - number, tzinfo=UTC)
            session.describe(customer=f"c-{number % 2}", amount=number, code="17", due=due)
            session.label("vip")
        store.session("plain").append(said("x"))

    def listed(*options: str) -> list[str]:
        done = CliRunner().invoke(main, ["ls", "--store", store_address, "--json", *options])
        assert done.exit_code == 0, done.output
        return [found["id"] for found in objects(done)]

    assert listed("--where", "customer=c-1") == ["s1", "s3"]
    assert listed("--where", "customer=c-1", "--where", "amount=3") == ["s3"]
    assert listed("--where", 'code="17"', "--order", "due") == ["s3", "s2", "s1", "s0"]
    assert listed("--where", "amount=1..2", "--order=-amount") == ["s2", "s1"]
    assert listed("--where", "amount=2..") == ["s2", "s3"]
    assert listed("--where", "due=2026-11-17T00:00:00Z") == ["s1"]
    assert listed("--order", "-amount", "--after", "s2", "--limit", "1") == ["s1"]
    assert listed("--order", "-changed", "--where", "customer=c-0") == ["s2", "s0"]
    for options in (["--where", "x"], ["--order", "changed"], ["--where", "amount=1..x"]):
        done = CliRunner().invoke(main, ["ls", "--store", store_address, *options])
        assert done.exit_code == 2, done.output
    done = CliRunner().invoke(main, ["ls", "--store", store_address, "--where", "code=17"])
    assert (done.exit_code, "matches" in done.output) == (1, True)
    (one,) = objects(CliRunner().invoke(main, ["ls", "s1", "--store", store_address, "--json"]))
    assert one["fields"]["due"] == "2026-11-17T00:00:00Z"
    assert one["labels"] == ["vip"]
    done = CliRunner().invoke(main, ["show", "s1", "--store", store_address])
    assert "labels vip, amount=1, code=17, customer=c-1, due=2026-11-17T00" in done.output
    assert "fields customer=c-1, amount=1, code=17, due=2026-11-17T00:00:00+00:00" in done.output


def test_a_page_says_that_there_is_more_and_how_to_go_on(path: Path) -> None:
    first = invoke(path, "ls", "--limit", "2", "--json")
    assert [found["id"] for found in objects(first)] == ["claim-4711", "empty-handed"]
    assert "There are more: use --after 'empty-handed', or" in first.stderr
    assert invoke(path, "ls", "--limit", "3").stderr == ""
    assert "use --limit 4, or" in invoke(path, "ls", "--recent", "--limit", "1").stderr


def test_only_the_sessions_that_are_shown_are_opened(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    resume = Store.resume

    def watched(self: Store, id: str) -> perdure.Session:
        opened.append(id)
        return resume(self, id)

    monkeypatch.setattr(Store, "resume", watched)
    invoke(path, "ls", "--limit", "1")
    assert opened == ["claim-4711"]


def test_nothing_that_matches_is_exit_code_1(path: Path) -> None:
    for options in (["nothing"], ["--label", "nothing"], ["--after", "zzz"]):
        done = invoke(path, "ls", *options)
        assert done.exit_code == 1
        assert done.stdout == ""
        assert "matches" in done.stderr


def test_an_empty_store_says_so_and_all_is_well(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    perdure.open(path).close()
    done = invoke(path, "ls")
    assert (done.exit_code, done.stdout) == (0, f"sqlite:{path} has no sessions.\n")
    done = invoke(path, "ls", "--json")
    assert (done.exit_code, done.output) == (0, "")


def test_after_can_not_be_given_with_recent(path: Path) -> None:
    done = invoke(path, "ls", "--recent", "--after", "x")
    assert done.exit_code == 2
    assert "--after is an id" in done.stderr


def test_a_damaged_session_does_not_hide_the_others(path: Path) -> None:
    damage(path, "delete from entry where stream = :place and position = 18")
    done = invoke(path, "ls")
    assert done.exit_code == 1
    assert "DAMAGED: " in done.stdout.splitlines()[1]
    assert done.stdout.splitlines()[2].startswith("empty-handed")
    assert "Some of these sessions are damaged: run `perdure verify`" in done.stderr


@pytest.mark.parametrize("options", [[], ["--recent"]])
def test_a_damaged_head_does_not_hide_the_others(path: Path, options: list[str]) -> None:
    damage(path, "update head set labels = 'nonsense' where id = :place")
    done = invoke(path, "ls", "--json", *options)
    assert done.exit_code == 1
    found = {one["id"]: one["state"] for one in objects(done)}
    assert found["claim-4711"] == "damaged"
    if not options:
        assert found == {"claim-4711": "damaged", "empty-handed": "live", "what-if": "live"}


def test_what_a_newer_perdure_wrote_does_not_hide_the_others(path: Path) -> None:
    write_as_newer(path, "empty-handed")
    done = invoke(path, "ls", "--json")
    assert done.exit_code == 3
    assert [one["state"] for one in objects(done)] == ["live", "newer", "live"]
    assert "NEWER: " in invoke(path, "ls").stdout


def test_a_long_id_is_whole_and_alone_on_its_line(tmp_path: Path) -> None:
    path = tmp_path / "long.db"
    name = "x" * 200
    with perdure.open(path) as store:
        store.session(name).append(said("x"))
        store.session("🦉 日本語").append(said("x"))
    _, long, rest, wide = invoke(path, "ls").stdout.splitlines()
    assert long == name
    assert cell_len(wide[: wide.index(" user")]) == cell_len(rest[: rest.index(" user")])


def test_a_store_that_keeps_no_order_of_changes_is_sorted_by_its_last_records(
    tmp_path: Path,
) -> None:
    address = f"files:{tmp_path / 'state'}"
    with perdure.open(address) as store:
        for name in ("b", "a", "c", "b"):
            store.session(name).append({"role": "user", "content": name})
    done = CliRunner().invoke(main, ["ls", "--recent", "--json", "--store", address])
    assert [one["id"] for one in objects(done)] == ["b", "c", "a"]
