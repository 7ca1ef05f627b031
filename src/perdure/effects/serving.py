"""Serve calls from the record during a replay: return recorded results, raise recorded errors.

Nothing is called. A call that is not in the record, or is not the next one, ends the replay.
"""

import builtins
import threading
from collections.abc import Iterable
from typing import Any, NoReturn

from perdure.effects import tools
from perdure.effects.asking import Recorded
from perdure.effects.calls import INTERRUPTED_NOTICE
from perdure.effects.effecting import Called, Outcome
from perdure.effects.tools import Spec, Telling, ToolTimeoutError
from perdure.entering import lane
from perdure.errors import UnknownOutcomeError, UsageError
from perdure.records import EffectSettled
from perdure.replays.recorded import Call
from perdure.replays.walking import Walk
from perdure.replica import Replica

# Must match the reasons that `tools.unstorable` and `tools.failure` record.
_UNSTORABLE = "It returned, and its result cannot be stored: "
_CUT = ("It was interrupted by ", " while it ran.")


class Serving:
    """Serves calls from the record. `errors` are application types to raise recorded errors as."""

    def __init__(
        self, replica: Replica, cursor: Walk, errors: Iterable[type[BaseException]] = ()
    ) -> None:
        self._replica = replica
        self._cursor = cursor
        self._errors = {error.__qualname__: error for error in errors}
        self.lock = threading.RLock()
        """Held while the cursor moves: tools are called in threads."""

    def serve(self, spec: Spec, call: Called, reply: Telling | None) -> Any:
        """Return the recorded result of a call, or raise its recorded error."""
        with self.lock:
            recorded = self._cursor.take_call(call, lane())
        outcome = recorded.outcome
        assert outcome is not None  # noqa: S101 - checked by `Walk.take_call`
        codec, name = self._replica.settings.codec, self._replica.name
        result = codec.unpack(outcome.result, stream=name)
        if reply is not None and recorded.messages and not self._cursor.precedes_start(recorded):
            self._serve_message(recorded, outcome, result, reply)
        if recorded.refused or self._cursor.precedes_start(recorded):
            return codec.unpack(tools.served(name, call.tool, "", outcome), stream=name)
        if outcome.state == "unknown" or outcome.error:
            self._raise(spec, call, outcome)
        return result

    def serve_model(self, call: Called) -> Recorded:
        """Return the recorded answer to a model call."""
        with self.lock:
            recorded, answers = self._cursor.take_model_call(call)
        outcome = recorded.outcome
        assert outcome is not None  # noqa: S101 - checked by `Walk.take_model_call`
        codec, name = self._replica.settings.codec, self._replica.name
        messages = [codec.unpack(answer.message, stream=name) for answer in answers]
        meta = codec.unpack(answers[-1].meta, stream=name) if answers else {}
        return Recorded(messages, meta, outcome.error, outcome.reason)

    def _serve_message(
        self, call: Call, outcome: EffectSettled, result: Any, reply: Telling
    ) -> None:
        """Set the recorded result message, which must follow from the recorded outcome."""
        position, message = self._cursor.message(call.messages[0])
        recorded = Outcome(outcome.state, error=outcome.error, reason=outcome.reason)
        texts = [tools.text_of(result)]
        failed = bool(outcome.error) or outcome.state == "unknown"
        if failed:
            texts = [tools.error_text(recorded), outcome.reason, INTERRUPTED_NOTICE]
        expected = [reply.build(text, failed=failed).message for text in texts]
        if message not in expected:
            what = f"the message with the result of {call.intent.tool!r} differs from its outcome"
            self._cursor.diverge_at(position, what, message, expected[0])
        reply.stored = message

    def _raise(self, spec: Spec, call: Called, outcome: EffectSettled) -> NoReturn:
        name, reason = self._replica.name, outcome.reason
        if outcome.state == "unknown":
            if spec.timeout is not None and reason == str(ToolTimeoutError(spec.timeout)):
                raise ToolTimeoutError(spec.timeout)
            if reason.startswith(_CUT[0]) and reason.endswith(_CUT[1]):
                raise self._again(reason.removeprefix(_CUT[0]).removesuffix(_CUT[1]), "")
            raise UnknownOutcomeError(name, call.tool, outcome.effect, "", reason)
        if reason.startswith(_UNSTORABLE):
            if spec.unstorable == "return":
                self._cursor.stop(f"the result of {call.tool!r} could not be stored")
            raise UsageError(reason.removeprefix(_UNSTORABLE))
        raise self._again(outcome.error, reason)

    def _again(self, name: str, reason: str) -> BaseException:
        """Return an error of the recorded type: a builtin, one of `errors`, or Exception."""
        kind = self._errors.get(name) or getattr(builtins, name, None)
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            kind = Exception
        return _recreated(kind, name, reason)


def _recreated(kind: type[BaseException], name: str, reason: str) -> BaseException:
    """Return an error that is caught like the one that was raised, and has its name and text.

    It is created without `__init__`, because the recorded constructor arguments are not known.
    """
    body = {"__str__": lambda _self: reason, "recorded": True, "__module__": kind.__module__}
    subclass: Any = type(name, (kind,), {**body, "__qualname__": name})
    error: BaseException = subclass.__new__(subclass)
    BaseException.__init__(error, reason)
    return error
