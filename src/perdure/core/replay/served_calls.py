"""Serve calls from the record during a replay: return recorded results, raise recorded errors.

Nothing is called. A call that is not in the record, or is not the next one, ends the replay.
"""

import builtins
import threading
from collections.abc import Iterable
from typing import Any, NoReturn

from perdure.core.effects import results
from perdure.core.effects.calls import (
    CallOutcome,
    CallRequest,
    ResultMessage,
    ToolSpec,
    ToolTimeoutError,
)
from perdure.core.effects.model_calls import RecordedAnswer
from perdure.core.effects.results import INTERRUPTED_PREFIX, INTERRUPTED_SUFFIX
from perdure.core.replay.cursor import ReplayCursor
from perdure.core.replay.record import RecordedCall
from perdure.core.replica import Replica
from perdure.core.turn_context import execution_lane
from perdure.errors import ToolFailureError, UnknownOutcomeError
from perdure.formats.tool_calls import INTERRUPTED_NOTICE
from perdure.journal.records import EffectOutcome


class RecordedCalls:
    """Serves calls from the record. `errors` are application types to raise recorded errors as."""

    def __init__(
        self, replica: Replica, cursor: ReplayCursor, errors: Iterable[type[BaseException]] = ()
    ) -> None:
        self._replica = replica
        self._cursor = cursor
        self._errors = {error.__qualname__: error for error in errors}
        self.lock = threading.RLock()
        """Held while the cursor moves: tools are called in threads."""

    def serve(self, spec: ToolSpec, call: CallRequest, reply: ResultMessage | None) -> Any:
        """Return the recorded result of a call, or raise its recorded error."""
        with self.lock:
            recorded = self._cursor.take_call(call, execution_lane())
        outcome = recorded.outcome
        assert outcome is not None  # noqa: S101 - checked by `take_call`
        codec, name = self._replica.settings.codec, self._replica.name
        result = codec.unpack(outcome.result, stream=name)
        if reply is not None and recorded.messages and not self._cursor.precedes_start(recorded):
            self._serve_message(recorded, outcome, result, reply)
        if recorded.refused or self._cursor.precedes_start(recorded):
            position, as_text = self._cursor.position_of(recorded), reply is not None
            return results.replay_result(
                name, call.tool, outcome, result, key="", position=position, as_text=as_text
            )
        if outcome.state == "unknown" or outcome.error:
            self._raise(spec, call, outcome, result)
        if outcome.unstored and reply is None:  # The agent got the result itself.
            self._cursor.stop(f"the result of {call.tool!r} could not be stored")
        return result

    def serve_model(self, call: CallRequest) -> RecordedAnswer:
        """Return the recorded answer to a model call."""
        with self.lock:
            recorded, answers = self._cursor.take_model_call(call)
        outcome = recorded.outcome
        assert outcome is not None  # noqa: S101 - checked by `take_model_call`
        codec, name = self._replica.settings.codec, self._replica.name
        messages = [codec.unpack(answer.message, stream=name) for answer in answers]
        meta = codec.unpack(answers[-1].meta, stream=name) if answers else {}
        return RecordedAnswer(messages, meta, outcome.error, outcome.reason)

    def _serve_message(
        self, call: RecordedCall, outcome: EffectOutcome, result: Any, reply: ResultMessage
    ) -> None:
        """Set the recorded result message, which must follow from the recorded outcome."""
        position, message = self._cursor.message(call.messages[0])
        recorded = CallOutcome(outcome.state, error=outcome.error, reason=outcome.reason)
        texts = [results.to_model_text(result)]
        failed = bool(outcome.error) or outcome.state == "unknown"
        if failed:
            texts = [results.failure_text(recorded), outcome.reason, INTERRUPTED_NOTICE]
        expected = [reply.build(text, failed=failed).message for text in texts]
        if message not in expected:
            what = f"the message with the result of {call.intent.tool!r} differs from its outcome"
            self._cursor.diverge_at(position, what, message, expected[0])
        reply.stored = message

    def _raise(
        self, spec: ToolSpec, call: CallRequest, outcome: EffectOutcome, result: Any
    ) -> NoReturn:
        reason = outcome.reason
        if outcome.state == "unknown":
            if spec.timeout is not None and reason == str(ToolTimeoutError(spec.timeout)):
                raise ToolTimeoutError(spec.timeout)
            if reason.startswith(INTERRUPTED_PREFIX) and reason.endswith(INTERRUPTED_SUFFIX):
                name = reason.removeprefix(INTERRUPTED_PREFIX).removesuffix(INTERRUPTED_SUFFIX)
                raise self._again(name, "")
            raise UnknownOutcomeError(self._replica.name, call.tool, outcome.effect, "", reason)
        if outcome.error == ToolFailureError.__qualname__:
            raise ToolFailureError(reason, result)
        raise self._again(outcome.error, reason)

    def _again(self, name: str, reason: str) -> BaseException:
        """Return an error of the recorded type: a builtin, one of `errors`, or Exception."""
        kind = self._errors.get(name) or getattr(builtins, name, None)
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            kind = Exception
        return _recreate_error(kind, name, reason)


def _recreate_error(kind: type[BaseException], name: str, reason: str) -> BaseException:
    """Return an error that is caught like the one that was raised, and has its name and text.

    It is created without `__init__`, because the recorded constructor arguments are not known.
    """
    body = {"__str__": lambda _self: reason, "recorded": True, "__module__": kind.__module__}
    subclass: Any = type(name, (kind,), {**body, "__qualname__": name})
    error: BaseException = subclass.__new__(subclass)
    BaseException.__init__(error, reason)
    return error
