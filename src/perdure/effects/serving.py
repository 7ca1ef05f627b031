"""What a call returned or raised when it was recorded, for an agent that is replayed."""

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

_UNSTORABLE = "It returned, and its result can not be stored: "
_CUT = ("It was interrupted by ", " while it ran.")


class Serving:
    """Serves calls from the record. `errors` are the application's own, which come back as such."""

    def __init__(
        self, replica: Replica, walk: Walk, errors: Iterable[type[BaseException]] = ()
    ) -> None:
        self._replica = replica
        self._walk = walk
        self._errors = {error.__qualname__: error for error in errors}
        self.moving = threading.RLock()
        """Held by who moves along the record: tools are called in threads."""

    def serve(self, spec: Spec, call: Called, tell: Telling | None) -> Any:
        """Return what a call returned, or raise what it raised."""
        with self.moving:
            found = self._walk.call(call, lane())
        outcome = found.outcome
        assert outcome is not None  # noqa: S101 - `Walk.call` saw to it
        codec, name = self._replica.settings.codec, self._replica.name
        result = codec.unpack(outcome.result, stream=name)
        if tell is not None and found.told and not self._walk.before(found):
            self._told(found, outcome, result, tell)
        if found.refused or self._walk.before(found):
            return codec.unpack(tools.served(name, call.tool, "", outcome), stream=name)
        if outcome.state == "unknown" or outcome.error:
            self._raise(spec, call, outcome)
        return result

    def asked(self, call: Called) -> Recorded:
        """Return what a model had answered."""
        with self.moving:
            found, said = self._walk.asked(call)
        outcome = found.outcome
        assert outcome is not None  # noqa: S101 - `Walk.asked` saw to it
        codec, name = self._replica.settings.codec, self._replica.name
        messages = [codec.unpack(one.message, stream=name) for one in said]
        meta = codec.unpack(said[-1].meta, stream=name) if said else {}
        return Recorded(messages, meta, outcome.error, outcome.reason)

    def _told(self, call: Call, outcome: EffectSettled, result: Any, tell: Telling) -> None:
        """Take what the model was told, which must follow from the recorded outcome."""
        position, message = self._walk.message(call.told[0])
        recorded = Outcome(outcome.state, error=outcome.error, reason=outcome.reason)
        texts = [tools.text_of(result)]
        failed = bool(outcome.error) or outcome.state == "unknown"
        if failed:
            texts = [tools.error_text(recorded), outcome.reason, INTERRUPTED_NOTICE]
        said = [tell.say(text, failed=failed).message for text in texts]
        if message not in said:
            what = f"the model was told something else of {call.intent.tool!r} than its outcome"
            self._walk.depart_from(position, what, message, said[0])
        tell.told = message

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
                self._walk.end(f"what {call.tool!r} returned could not be stored")
            raise UsageError(reason.removeprefix(_UNSTORABLE))
        raise self._again(outcome.error, reason)

    def _again(self, name: str, reason: str) -> BaseException:
        """Return an error of the recorded type: one of Python's own, or one that was given."""
        found = self._errors.get(name) or getattr(builtins, name, None)
        if not (isinstance(found, type) and issubclass(found, BaseException)):
            found = Exception
        return _recreated(found, name, reason)


def _recreated(kind: type[BaseException], name: str, reason: str) -> BaseException:
    """Return an error that is caught and reads as the one that was raised."""
    body = {"__str__": lambda _self: reason, "recorded": True, "__module__": kind.__module__}
    made: Any = type(name, (kind,), {**body, "__qualname__": name})
    error: BaseException = made.__new__(made)
    BaseException.__init__(error, reason)
    return error
