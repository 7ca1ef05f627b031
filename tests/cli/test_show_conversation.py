"""`perdure show` and `tail` of what is beside the messages: summaries, pins, tools, cut answers."""

from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.events import correlation_id
from tests.cli.support import EVIL, SNEAKY, interrupt, invoke, said, ticking
from tests.formats.streams import one_choice

SCREEN = """\
claim-4711  in sqlite:{path}
8 messages, position 26, 1 open turn, labels turn-open

   1  system
      Be brief.

   2  ── turn begins ── 2026-01-01 00:02:00 ───────────────────────────────────

   3  user
      First question, about the policy.

   4  assistant
      The first answer.

   5  ── turn is complete ── 2026-01-01 00:04:00 ──────────────────────────────

   6  ── turn begins ── 2026-01-01 00:05:00 ───────────────────────────────────

   7  user
      Second question, about the limit.

   8  assistant
      The second answer.

   9  ── turn is complete ── 2026-01-01 00:07:00 ──────────────────────────────

  10  ── turn begins ── 2026-01-01 00:08:00 ───────────────────────────────────

  11  user
      Third.
  12  tools offered: lookup, charge

  15  assistant INTERRUPTED
      one two

  16  ── turn is complete ── 2026-01-01 00:12:00 ──────────────────────────────

  17  message 3 is pinned
  18  message 3 is no longer pinned
  19  summary of 1 to 4, replaces them in windows
      They asked one thing.
  20  summary of 7 to 8 and the summary at 19, replaces them in windows
      They asked two things.
  21  the summary at 20 is undone

  22  ── turn (req-11) begins ── 2026-01-01 00:18:00 ──────────────────────────

  23  user
      Fourth.

  24  ── turn (req-11) is resumed ── 2026-01-01 00:19:00 ──────────────────────

── turn (req-11), begun at 22: INTERRUPTED
      It has no end: its process died, or is still running.
      Its partial answer:
      one two

4 records of bookkeeping not shown: --records shows every record.
"""


@pytest.fixture(autouse=True)
def no_correlation() -> None:
    """Forget the correlation id of a turn that a test before may have entered and never left."""
    correlation_id.set("")


def talk(path: Path) -> Path:
    with perdure.open(path, clock=ticking()) as store:
        claim = store.session("claim-4711")
        claim.append(said("Be brief.", "system"))
        first = [("First question, about the policy.", "The first answer.")]
        for question, answer in [
            *first,
            ("Second question, about the limit.", "The second answer."),
        ]:
            with claim.turn(question) as turn:
                turn.append(said(answer, "assistant"))
        with claim.turn("Third.") as turn:
            turn.record_tools([{"type": "function", "function": {"name": name}} for name in TOOLS])
            list(turn.stream(CHUNKS, flush_every=0))
        claim.pin(3)
        claim.unpin(3)
        claim.summarize(lambda _: "They asked one thing.", keep_turns=2)
        claim.summarize(lambda _: "They asked two things.", keep_turns=1)
        claim.undo_summary()
        interrupt(claim, "Fourth.", "req-11")
        (turn,) = perdure.Session(store._driver, claim._replica).interrupted
        with turn:
            list(turn.stream(CHUNKS, flush_every=0))
            turn.suspend()  # As a process leaves it that dies here.
    return path


TOOLS = ("lookup", "charge")
CHUNKS: list[Any] = [
    one_choice(0, {"role": "assistant", "content": "one "}),
    one_choice(0, {"content": "two "}),
]


def test_what_is_beside_the_messages_is_shown_in_words(tmp_path: Path) -> None:
    path = talk(tmp_path / "agents.db")
    done = invoke(path, "show", "claim-4711")
    assert done.exit_code == 0
    shown = [line.rstrip() for line in done.stdout.splitlines()]
    assert shown == SCREEN.format(path=path).splitlines()


def test_pieces_are_shown_where_every_record_is(tmp_path: Path) -> None:
    path = talk(tmp_path / "agents.db")
    shown = invoke(path, "show", "claim-4711", "--records").stdout
    assert shown.count("  message.chunk  ") == 4
    assert '"text": "They asked one thing."' in shown


def test_tail_has_a_line_for_each(tmp_path: Path) -> None:
    path = talk(tmp_path / "agents.db")
    lines = invoke(path, "tail", "claim-4711", "-n", "20").stdout.splitlines()
    shown = "\n".join(line[29:] for line in lines)
    for expected in (
        "a chunk of a streamed answer: one",
        "assistant INTERRUPTED: one two",
        "message 3 is pinned",
        "summary of 1 to 4, replaces them in windows: They asked one thing.",
        "the summary at 20 is undone",
        "tools offered: lookup, charge",
    ):
        assert expected in shown


def test_a_summary_can_not_take_over_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    with perdure.open(path) as store:
        claim = store.session("claim-4711")
        claim.append(*(said("a question of some length " * 9) for _ in range(5)))
        claim.summarize(lambda _: "Sum " + EVIL)
        with claim.turn("go") as turn:
            turn.record_tools([{"type": "function", "function": {"name": EVIL}}])
            list(turn.stream([one_choice(0, {"content": EVIL})], flush_every=0))
    for command in (["show"], ["tail", "-n", "20"], ["show", "--records"]):
        done = invoke(path, command[0], "claim-4711", *command[1:])
        assert not {*SNEAKY} & {*done.stdout}


@pytest.mark.parametrize("flag", [(), ("--full",)])
def test_what_can_not_be_read_of_a_cut_answer_is_told(
    tmp_path: Path, flag: tuple[str, ...]
) -> None:
    from tests.cli.support import damage

    path = talk(tmp_path / "agents.db")
    damage(path, "update entry set body = replace(body, 'two', 'too') where position = 26")
    done = invoke(path, "show", "claim-4711", *flag)
    assert done.exit_code == 1
    assert "UNREADABLE" in done.stdout


def test_an_opaque_message_is_shown_field_by_field(tmp_path: Path) -> None:
    path = tmp_path / "opaque.db"
    with perdure.open(path) as store:
        store.session("s").append(
            {"role": "user", "kid": "k1", "payload": {"a": 1}}, opaque=True, author="seat"
        )
    shown = invoke(path, "show", "s").stdout
    assert "opaque message seat" in shown
    assert "kid: k1" in shown
    assert 'payload: {"a": 1}' in shown


def test_calls_are_shown_with_what_became_of_them(tmp_path: Path) -> None:
    path = tmp_path / "effects.db"

    def charge(amount: int) -> Any:
        if amount > 5:
            raise KeyboardInterrupt
        return {"charged": amount} if amount else (0, "free")

    with perdure.open(path) as store:
        session = store.session("s")
        with session.turn("Pay."):
            tool = session.tool(charge)
            tool(5)
            tool(0)
            with pytest.raises(KeyboardInterrupt):
                tool(6)
    shown = invoke(path, "show", "s").stdout
    assert "calls charge, unsafe" in shown
    assert '{"amount": 5}' in shown
    assert "succeeded in 0." in shown
    assert '{"charged": 5}' in shown
    assert "its result of type tuple could not" in " ".join(shown.split())
    assert "(0, 'free')" in shown
    assert "may have happened, outcome unknown: effect" in shown


def test_a_call_of_the_responses_api_is_shown_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with perdure.open(path) as store:
        store.session("s").append(
            {"role": "user", "content": "pay"},
            {
                "type": "function_call",
                "call_id": "call_1",
                "name": "pay",
                "arguments": '{"amount": 3}',
                "status": "completed",
            },
            {"type": "function_call_output", "call_id": "call_1", "output": "paid"},
        )
    shown = invoke(path, "show", "s").stdout
    assert "→ pay(amount=3) [call_1]" in shown
    assert "status: completed" in shown
    assert "output: paid" in shown
