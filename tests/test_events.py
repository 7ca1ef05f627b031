"""The log of persistence events: what is told, with which fields, and what never is."""

import asyncio
import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import perdure
import perdure.logging
from perdure import logging as perdure_logging
from perdure.backends.memory import MemoryBackend
from perdure.errors import ConflictError, UnavailableError, UsageError
from perdure.events import correlation_id
from perdure.safe_text import is_safe
from perdure.testing import Flaky
from tests.support import said

SECRET = "policy holder's secret"  # noqa: S105 - a word to look for


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    token = correlation_id.set("")
    handler = perdure_logging.json(stream)
    yield stream
    logging.getLogger("perdure").removeHandler(handler)
    logging.getLogger("perdure").setLevel(logging.NOTSET)
    correlation_id.reset(token)


def events(log: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


def named(log: io.StringIO, event: str) -> list[dict[str, Any]]:
    return [told for told in events(log) if told.get("event") == event]


def test_a_conversation_is_told_from_opening_to_closing(log: io.StringIO) -> None:
    backend = MemoryBackend()
    store = perdure.open(backend)
    session = store.session("s")
    with session.turn(SECRET, correlation_id="req-9") as turn:
        turn.append(said(SECRET, "assistant"))
    session.set("plan", SECRET)
    session.verify()
    session.close()
    perdure.open(backend).session("s")
    assert [told["event"] for told in events(log)] == [
        "open",
        *["append"] * 4,
        "verify",
        "close",
        "resume",
    ]
    begin, said_, end, value = named(log, "append")
    assert (begin["plan"], begin["position"], begin["turn"]) == ("turn.begin", 2, turn.id)
    assert (said_["plan"], said_["position"], said_["correlation_id"]) == ("message", 3, "req-9")
    assert (end["plan"], end["outcome"]) == ("turn.end", "ok")
    assert (value["plan"], "correlation_id" in value) == ("value", False)
    assert (named(log, "verify")[0]["records"], named(log, "verify")[0]["position"]) == (5, 5)
    (resumed,) = named(log, "resume")
    assert (resumed["count"], resumed["role"], resumed["position"]) == (2, "assistant", 5)
    for told in events(log):
        assert (told["store"], told["session"], told["level"]) == ("memory:", "s", "info")
        assert told["duration"] >= 0


def test_a_body_is_never_told(log: io.StringIO) -> None:
    store = perdure.open("memory:")
    session, other = store.session("s"), store.session("s")
    session.append(said(SECRET), id="m-1")
    session.note(SECRET)
    with pytest.raises(ConflictError):
        other.append(said(SECRET))
    with pytest.raises(perdure.DivergenceError):
        session.append(said(SECRET + "!"), id="m-1")
    with pytest.raises(UsageError):
        session.append({"role": {SECRET}})
    assert len(events(log)) > 4
    assert "secret" not in log.getvalue()


def test_a_conflict_is_told_whether_it_was_retried_or_refused(log: io.StringIO) -> None:
    store = perdure.open("memory:")
    one, two = store.session("s"), store.session("s")
    one.append(said("a"))
    two.note("retried")
    assert named(log, "conflict")[0]["head"] == 1
    assert named(log, "append")[-1]["outcome"] == "ok"
    one.note("again")
    two.refresh()
    two.append(said("b"))
    with pytest.raises(ConflictError):
        one.append(said("c"))
    assert named(log, "append")[-1]["outcome"] == "ConflictError"
    assert len(named(log, "conflict")) >= 2


def test_doubt_and_its_end_are_told(log: io.StringIO) -> None:
    flaky = Flaky(MemoryBackend(), fail=lambda call: call in {2, 3}, after_commit=True)
    session = perdure.open(flaky).session("s")
    session.append(said("a"))
    with pytest.raises(UnavailableError):
        session.append(said("b"), said("c"))
    (doubt,) = named(log, "write_in_doubt")
    assert (doubt["first"], doubt["last"], doubt["level"]) == (2, 3, "warning")
    session.append(said("d"))
    (settled,) = named(log, "settled")
    assert (settled["first"], settled["last"], settled["outcome"]) == (2, 3, "stored")


def test_the_correlation_id_follows_each_task(log: io.StringIO, tmp_path: Path) -> None:
    async def talk(store: perdure.AsyncStore, number: int) -> None:
        session = await store.session(f"s-{number}")
        with perdure_logging.correlation(f"req-{number}"):
            async with session.turn("hello") as turn:
                await asyncio.sleep(0)
                await turn.append(said("hi", "assistant"))
            logging.getLogger("perdure.mine").info("of my own")

    async def main() -> None:
        async with perdure.open_async(tmp_path / "a.db") as store:
            await asyncio.gather(*(talk(store, number) for number in range(8)))

    asyncio.run(main())
    for told in named(log, "append"):
        assert told["correlation_id"] == told["session"].replace("s-", "req-")
    own = [told["correlation_id"] for told in events(log) if told["logger"] == "perdure.mine"]
    assert sorted(own) == [f"req-{number}" for number in range(8)]
    with perdure.open(tmp_path / "a.db") as store:
        begun: Any = next(store.records("s-3")).content
        assert begun.correlation_id == "req-3"
    assert correlation_id.get() == ""


def test_setting_up_again_replaces_what_was_set_up(tmp_path: Path, log: io.StringIO) -> None:
    handler = perdure_logging.json(tmp_path / "events.jsonl", level="WARNING")
    perdure.open("memory:").session("s").append(said("a"))
    assert log.getvalue() == ""
    assert (tmp_path / "events.jsonl").read_text() == ""
    perdure_logging.json(tmp_path / "events.jsonl")
    perdure.open("memory:").session("s").append(said("a"))
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["open", "append"]
    logging.getLogger("perdure").handlers[-1].close()
    assert handler not in logging.getLogger("perdure").handlers


def test_a_missing_directory_for_the_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="create it first"):
        perdure_logging.json(tmp_path / "nowhere" / "events.jsonl")


def test_exceptions_and_odd_fields_become_json(log: io.StringIO) -> None:
    try:
        {}["boom"]  # type: ignore[index]
    except KeyError:
        logging.getLogger("perdure").exception("failed", extra={"where": Path("x")})
    (told,) = [json.loads(line) for line in log.getvalue().splitlines()]
    assert (told["where"], "KeyError: 'boom'" in told["exception"]) == ("x", True)


def test_nothing_is_imported_or_told_where_nobody_listens() -> None:
    code = (
        "import sys, perdure\n"
        "s = perdure.open('memory:').session('s')\n"
        "s.append({'role': 'user', 'content': 'hi'})\n"
        "s.close()\n"
        "print('logging' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_structlog_sees_the_fields() -> None:
    structlog = pytest.importorskip("structlog")
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logger = logging.getLogger("perdure")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        perdure.open("memory:").session("s").append(said(SECRET))
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    opened, appended = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert (opened["session"], appended["position"], appended["plan"]) == ("s", 1, "message")
    assert "secret" not in stream.getvalue()


def test_spans_are_made_where_opentelemetry_is_used() -> None:
    code = (
        "from opentelemetry import trace\n"
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "from opentelemetry.sdk.trace.export import SimpleSpanProcessor\n"
        "from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter\n"
        "exporter, provider = InMemorySpanExporter(), TracerProvider()\n"
        "provider.add_span_processor(SimpleSpanProcessor(exporter))\n"
        "trace.set_tracer_provider(provider)\n"
        "import perdure\n"
        "store = perdure.open('memory:')\n"
        "session = store.session('s')\n"
        "session.append({'role': 'user', 'content': 'secret'})\n"
        "store.session('s').verify()\n"
        "for span in exporter.get_finished_spans():\n"
        "    fields = span.attributes\n"
        "    print(span.name, fields['perdure.session'], fields['perdure.outcome'])\n"
        "    assert 'secret' not in str(fields)\n"
    )
    pytest.importorskip("opentelemetry.sdk")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "perdure.open s ok",
        "perdure.append s ok",
        "perdure.resume s ok",
        "perdure.verify s ok",
    ]


EVIL = "req-9\r\n1970 INFO perdure forged \x1b[2J \u2028\u202e"


def use_evil_names(store: perdure.Store) -> None:
    """Let text of users into whatever an event tells."""
    session = store.session("claim\u2028-\u202e1")
    with session.turn("Hi.", correlation_id=EVIL):
        pass
    other = store.session("claim\u2028-\u202e1")
    lease = session.lease(owner=EVIL.strip())
    lease.__enter__()
    with other.lease(owner=EVIL.strip(), force=True):
        pass
    session.note("late")  # Now the loss is noticed.
    with pytest.raises(perdure.FencedError):
        lease.__exit__(None, None, None)


def test_text_of_users_forges_no_line_of_a_log() -> None:
    lines = io.StringIO()
    handler = logging.StreamHandler(lines)
    handler.setFormatter(
        logging.Formatter("%(levelname)s %(correlation_id)s %(session)s %(message)s")
    )
    logger = logging.getLogger("perdure")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        use_evil_names(perdure.open("memory:"))
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    shown = lines.getvalue()
    assert "\\r\\n1970 INFO perdure forged" in shown
    assert "lease_lost" in shown
    assert all(is_safe(line) for line in shown.split("\n"))
    assert all(line.startswith(("INFO ", "WARNING ")) for line in shown.splitlines())


def test_text_of_users_is_one_line_of_json_and_can_be_read(log: io.StringIO) -> None:
    use_evil_names(perdure.open("memory:"))
    logging.getLogger("perdure.adapters").warning("changed by %s", EVIL)
    lines = log.getvalue().splitlines()
    assert all(is_safe(line) for line in lines)
    told = [json.loads(line) for line in lines]
    assert told[-1]["message"] == f"changed by {EVIL}"
    assert {line["session"] for line in told[:-1]} == {"claim\\u2028-\\u202e1"}
    assert any(line.get("holder") for line in told if line["event"] == "lease_lost")


def test_a_correlation_id_on_other_loggers_is_safe_too() -> None:
    record = logging.makeLogRecord({"msg": "x"})
    with perdure_logging.correlation(EVIL):
        perdure_logging.CorrelationFilter().filter(record)
    assert is_safe(vars(record)["correlation_id"])
    assert "forged" in vars(record)["correlation_id"]
