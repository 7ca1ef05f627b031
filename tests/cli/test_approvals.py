"""`perdure approvals`, `approve`, `deny` and `effects`: what will be run, and what became of it."""

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import perdure
from perdure.cli.__main__ import main
from perdure.errors import ApprovalDeniedError, ApprovalPendingError, UnknownOutcomeError
from tests.cli.support import EVIL, SNEAKY, invoke, objects, start, ticking


def pay(amount: int, to: str = "bob") -> dict[str, int]:
    return {"paid": amount}


def ask(session: perdure.Session, *args: Any, **options: Any) -> str:
    tool = session.tool(pay, version="2", actor="clerk", approval=True, approval_wait=0, **options)
    with pytest.raises(ApprovalPendingError) as error, session.turn("Pay."):
        tool(*args)
    return error.value.approval


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agents.db"


@pytest.fixture
def asked(path: Path) -> dict[str, str]:
    """Two sessions with a call that waits each, by session; a third has none."""
    with perdure.open(path) as store:
        store.session("claim-3").note("nothing waits here")
        return {name: ask(store.session(name), 2400) for name in ("claim-1", "claim-2")}


def answering(path: Path, answer: str, *arguments: str) -> Result:
    environment = {"COLUMNS": "80", "PERDURE_URL": ""}
    return CliRunner(env=environment).invoke(main, [*arguments, "--store", str(path)], input=answer)


def test_what_waits_is_listed_with_what_would_be_run(path: Path, asked: dict[str, str]) -> None:
    shown = invoke(path, "approvals")
    assert shown.exit_code == 0
    for text in (*asked.values(), "claim-1", "claim-2", "pay", "2", "clerk", "amount = 2400"):
        assert text in shown.stdout
    only = invoke(path, "approvals", "claim-1")
    assert asked["claim-1"] in only.stdout
    assert asked["claim-2"] not in only.stdout
    assert "no pending approvals" in invoke(path, "approvals", "claim-3").stdout
    (one, two) = objects(invoke(path, "approvals", "--json"))
    assert (one["session"], one["id"], one["state"]) == ("claim-1", asked["claim-1"], "waiting")
    assert one["arguments"] == {"amount": 2400}
    assert one["digest"] == two["digest"], "the same would be run"
    assert invoke(path, "approvals", "nobody").exit_code == 1


def test_a_call_is_approved_and_then_runs(path: Path, asked: dict[str, str]) -> None:
    approval = asked["claim-1"]
    result = invoke(
        path, "approve", "claim-1", approval, "--yes", "--by", "ada", "--reason", "seen"
    )
    assert result.exit_code == 0
    digest = objects(invoke(path, "approvals", "claim-2", "--json"))[0]["digest"]
    for text in ("pay", "amount = 2400", digest, "Approved, by ada"):
        assert text in result.stdout
    with perdure.open(path) as store:
        session = store.session("claim-1")
        with session.interrupted[0]:
            assert session.tool(pay, version="2", approval=True)(2400) == {"paid": 2400}
    (found,) = objects(invoke(path, "approvals", "claim-1", "--all", "--json"))
    assert (found["state"], found["by"], found["reason"]) == ("used", "ada", "seen")
    shown = invoke(path, "show", "claim-1").stdout
    assert f"waits for approval {approval}" in shown
    assert f"approval {approval} is approved by ada" in shown
    assert f"under approval {approval}" in " ".join(shown.split())


def test_a_denied_call_is_not_made(path: Path, asked: dict[str, str]) -> None:
    result = invoke(path, "deny", "claim-1", asked["claim-1"], "--yes", "--reason", "no", "--json")
    (found,) = objects(result)
    assert (found["state"], found["reason"]) == ("denied", "no")
    assert found["by"], "who runs the command"
    with perdure.open(path) as store:
        session = store.session("claim-1")
        with session.interrupted[0], pytest.raises(ApprovalDeniedError, match="denied") as caught:
            session.tool(pay, version="2", approval=True)(2400)
    assert caught.value.reason.endswith("Reason: no")
    (effect,) = objects(invoke(path, "effects", "claim-1", "--json"))
    assert (effect["state"], effect["error"]) == ("failed", "ApprovalDenied")
    assert effect["arguments"] == {"amount": 2400}


def test_a_person_is_asked_and_may_say_no(path: Path, asked: dict[str, str]) -> None:
    for answer in ("n\n", "", "\n"):
        result = answering(path, answer, "approve", "claim-1")
        assert result.exit_code == 1
        assert "Nothing was decided" in result.stderr
        assert "amount = 2400" in result.stdout
    assert len(objects(invoke(path, "approvals", "--json"))) == 2
    assert answering(path, "y\n", "approve", "claim-1", "--by", "ada").exit_code == 0
    assert len(objects(invoke(path, "approvals", "--json"))) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("approve", "claim-1", "nix", "--yes"), 1, "no approval 'nix'"),
        (("deny", "claim-1", "nix", "--yes"), 1, "no approval 'nix'"),
        (("approve", "claim-1", "--yes"), 2, "needs the id of the approval"),
        (("approve", "claim-3", "--yes"), 1, "No call is pending"),
        (("approve", "nobody", "x", "--yes"), 1, "no session 'nobody'"),
        (("approve", "claim-1", "--json"), 2, "give --yes"),
        (("approve",), 2, "SESSION"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_can_not_be_decided_is_said(
    path: Path, asked: dict[str, str], arguments: tuple[str, ...], code: int, text: str
) -> None:
    result = invoke(path, *arguments)
    assert result.exit_code == code
    assert text in result.stderr
    assert len(objects(invoke(path, "approvals", "--json"))) == 2


def test_the_first_decision_counts(path: Path, asked: dict[str, str]) -> None:
    approval = asked["claim-1"]
    assert invoke(path, "deny", "claim-1", approval, "--yes", "--by", "ada").exit_code == 0
    for command in ("approve", "deny"):
        result = invoke(path, command, "claim-1", approval, "--yes")
        assert result.exit_code == 1
        assert "is denied by ada" in result.stderr


def test_several_that_wait_must_be_named(path: Path) -> None:
    with perdure.open(path) as store:
        session = store.session("s")
        tool = session.tool(pay, approval=True, approval_wait=0)
        with session.turn("Pay.") as turn:
            for amount in (1, 2):
                with pytest.raises(ApprovalPendingError):
                    tool(amount)
            turn.suspend()
    result = invoke(path, "approve", "s")
    assert result.exit_code == 2
    assert "give one of" in result.stderr


def test_what_is_stored_can_not_rewrite_the_screen(path: Path) -> None:
    with perdure.open(path) as store:
        session = store.session("s")
        tool = session.tool(pay, name="p\u202eay", approval=True, approval_wait=0)
        with pytest.raises(ApprovalPendingError), session.turn("Pay."):
            tool(1, EVIL)
    for arguments in (("approvals",), ("show", "s"), ("effects",)):
        shown = invoke(path, *arguments).stdout
        assert not set(SNEAKY) & set(shown.replace("\n", ""))
    result = answering(path, "y\n", "deny", "s", "--reason", EVIL, "--by", EVIL)
    assert result.exit_code == 0
    assert not set(SNEAKY) & set(result.stdout.replace("\n", ""))
    shown = invoke(path, "approvals", "--all").stdout
    assert not set(SNEAKY) & set(shown.replace("\n", ""))


WAITS = """
import sys, perdure
with perdure.open(sys.argv[1]) as store:
    session = store.session("s")
    tool = session.tool(lambda amount: print("paid", amount, flush=True), name="pay", approval=True)
    with session.turn("Pay."):
        tool(5)
"""


def test_a_line_break_in_a_name_can_not_pose_as_another_argument(path: Path) -> None:
    call = {"name": "pay", "arguments": json.dumps({'note\nto = "bob"': 1})}
    calls = [{"id": "c1", "type": "function", "function": call}]

    def pay(**payment: Any) -> None: ...

    with perdure.open(path) as store, store.session("s") as session:
        tool = session.tool(pay, version="2\nto = bob", approval=True, approval_wait=0)
        with suppress(ApprovalPendingError), session.turn("Pay.") as turn:
            turn.append({"role": "assistant", "content": None, "tool_calls": calls})
            session.run_tool_calls(tools=[tool])
    for command in (["approvals"], ["deny", "s"]):
        lines = answering(path, "n\n", *command).output.splitlines()
        assert not [line for line in lines if line.strip().startswith("to =")]
        assert any('note\\nto = "bob" = 1' in line for line in lines)


def test_another_process_lets_a_call_happen_that_waits(tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    command = [sys.executable, "-c", WAITS, str(path)]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True) as child:
        assert child.stderr is not None
        line = child.stderr.readline()
        told = line[line.index("decide=perdure approve") :].split()
        with start(*told[1:], "--yes", "--by", "ada", folder=tmp_path) as decider:
            out, _ = decider.communicate(timeout=60)
        assert "Approved, by ada" in out
        out, err = child.communicate(timeout=60)
    assert (child.returncode, out, err) == (0, "paid 5\n", "")


def test_effects_are_listed_by_session_tool_and_state(path: Path) -> None:
    class KilledError(BaseException):
        pass

    def dies(amount: int) -> None:
        session._handle.write = _dead  # type: ignore[method-assign]
        raise KilledError

    def _dead(plan: object) -> Any:
        raise KilledError

    with perdure.open(path, clock=ticking()) as store:
        session = store.session("a")
        with session.turn("Pay."):
            session.tool(pay)(1)
            session.tool(len, name="measure", effect="read_only")("x" * 500)
        session = store.session("b")
        with pytest.raises(KilledError), session.turn("Pay.", id="t"):
            session.tool(dies, name="pay")(7)
    with perdure.open(path) as store:
        session = store.session("b")
        with session.interrupted[0], pytest.raises(UnknownOutcomeError):
            session.tool(pay)(7)
    shown = invoke(path, "effects")
    assert shown.exit_code == 0
    for text in ("pay(amount=1)", "measure(", "succeeded", "unknown", "pay(amount=7)", "key "):
        assert text in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) < 80
    found = objects(invoke(path, "effects", "--json"))
    assert [(one["session"], one["tool"]) for one in found] == [
        ("a", "pay"),
        ("a", "measure"),
        ("b", "pay"),
    ]
    (unknown,) = objects(invoke(path, "effects", "--unknown", "--json"))
    assert (unknown["session"], unknown["arguments"]) == ("b", {"amount": 7})
    assert objects(invoke(path, "effects", "a", "--unknown", "--json")) == []
    assert len(objects(invoke(path, "effects", "--tool", "pay", "--json"))) == 2
    assert "no unknown outcomes" in invoke(path, "effects", "a", "--unknown").stdout
    assert invoke(path, "effects", "nobody").exit_code == 1
    assert json.loads(json.dumps(found)) == found
