"""Write items of OpenAI's Responses API: a message becomes items, results follow their calls.

Messages in the neutral form come in, items go out. Pure. Content that cannot be written is reported
as a loss.

The provider links an item's id to the reasoning that produced it, and rejects the id without that
reasoning. So an id is sent only on the item that directly follows its reasoning, or where the type
requires one.
"""

from typing import Any

from perdure.effects import calls
from perdure.formats.fields import fit
from perdure.formats.inputs import input_text, result_text, tell_error
from perdure.formats.parts import (
    RESPONSES,
    Loss,
    Losses,
    Native,
    Opaque,
    Part,
    Reasoning,
    Refusal,
    Result,
    Speech,
    Text,
    ToolCall,
    inexpressible,
)
from perdure.formats.responses_items import (
    ANSWERS,
    CALLS,
    CONTEXT,
    HOSTED,
    MESSAGE,
    PARTS,
    REASONING,
    RESULTS,
    SPECIAL_OUTPUTS,
    legal_id,
    legal_status,
    needs_id,
    reasoning_is_whole,
)
from perdure.formats.responses_parts import write_parts

_TYPES = {"function": "function_call", "deprecated": "function_call", "custom": "custom_tool_call"}


def write(messages: list[Speech], losses: Losses) -> tuple[list[Native], None]:
    """Write messages as items."""
    writer = _Writer(losses)
    for message in messages:
        writer.add(message)
    return writer.finish(), None


class _Writer:
    """Collects items, each with the position of its stored message, and the ids in use."""

    def __init__(self, losses: Losses) -> None:
        self._losses = losses
        self._items: list[tuple[Native, int]] = []
        self._ids: set[str] = set()
        self._answerable: set[str] = set()
        self._input_written = False  # Whether anything but answers was written.
        # Whether the reasoning of an answer's item may be missing: at the beginning, where a window
        # may have cut an answer in two, and after reasoning that could not be sent.
        self._reasoning_lost = True

    def add(self, message: Speech) -> None:
        parts = message.parts
        native_role = message.stored_role if message.stored_role == "developer" else message.role
        first = parts[0]
        if len(parts) == 1 and type(first) is Text and first.native is None:
            self._items.append(({"role": native_role, "content": first.text}, first.at))
        elif message.role == "assistant":
            self._add_answer(parts)
        elif message.role == "context":
            self._add_context(parts[0])
        else:
            content = write_parts(parts, message.role, self._losses)
            if content:
                self._items.append(({"role": native_role, "content": content}, message.at))
        if message.role == "user" and self._items and self._items[-1][0].get("role") == "user":
            self._input_written = True

    def finish(self) -> list[Native]:
        """Return the items, with ids only where required or directly after reasoning."""
        items = [item for item, _ in self._items]
        previous_type = ""
        for item in items:
            type_ = item.get("type", "message")
            if "id" in item and previous_type != "reasoning" and not needs_id(type_):
                del item["id"]
            previous_type = type_
        return items

    def _add_answer(self, parts: list[Part]) -> None:
        message: Native | None = None  # The stored item, or `_JOINED`, that texts are added to.
        results: list[tuple[Native, int]] = []
        self._reasoning_lost = not self._input_written
        for part in parts:
            if results and type(part) is not ToolCall:
                self._add_results(results)
                message = None
            if type(part) is Text or type(part) is Refusal:
                message = self._add_text(part, message)
                continue
            message = None
            if type(part) is ToolCall:
                results += self._add_call(part)
            elif type(part) is Reasoning and part.home == RESPONSES:
                self._add_reasoning(part)
            elif type(part) is Opaque and part.home == RESPONSES:
                self._add_hosted(part)
            else:
                self._losses.append(inexpressible(part, RESPONSES, "from the assistant"))
        self._drop_reasoning_at_the_end()
        self._add_results(results)

    def _add_results(self, results: list[tuple[Native, int]]) -> None:
        if results:
            self._items += results
            self._input_written, self._reasoning_lost = True, False
            results.clear()

    def _drop_reasoning_at_the_end(self) -> None:
        """Drop reasoning after which nothing of its answer could be sent."""
        while self._items and self._items[-1][0].get("type") == "reasoning":
            item, at = self._items.pop()
            self._ids.discard(item["id"])  # It may occur again, with the content it led to.
            self._losses.append(inexpressible(Reasoning(at, item, RESPONSES), RESPONSES))

    def _add_text(self, part: Text | Refusal, message: Native | None) -> Native | None:
        """Add a stored answer's item once for all its parts; other texts form a new message."""
        if part.native is not None and part.home == RESPONSES:
            if part.native is not message and (item := self._fit_message(part)):
                self._items.append((item, part.at))
            return part.native
        written: Native = {"type": "output_text", "text": part.text, "annotations": []}
        if type(part) is Refusal:
            written = {"type": "refusal", "refusal": part.text}
        last = self._items[-1][0] if self._items and message is _JOINED else None
        if last is not None:
            if type(last["content"]) is str:
                text = {"type": "output_text", "text": last["content"], "annotations": []}
                last["content"] = [text]
            last["content"].append(written)
        elif type(part) is Text:
            self._items.append(({"role": "assistant", "content": part.text}, part.at))
        else:
            self._items.append(({"role": "assistant", "content": [written]}, part.at))
        return _JOINED

    def _fit_message(self, part: Text | Refusal) -> Native | None:
        native = part.native or {}
        item = self._fit(native, MESSAGE, "message", part.at)
        if item is not None:
            item["content"] = [
                trimmed
                for native_part in native["content"]
                if (
                    trimmed := fit(
                        native_part, PARTS[native_part["type"]], "a part", part.at, self._losses
                    )
                )
            ]
        return item

    def _add_reasoning(self, part: Reasoning) -> None:
        item = self._fit(part.native, REASONING, "reasoning", part.at)
        if item is None:
            self._reasoning_lost = True
        elif not reasoning_is_whole(item):
            self._losses.append(inexpressible(part, RESPONSES))
            self._reasoning_lost = True
        else:
            self._reasoning_lost = False
            self._items.append((item, part.at))

    def _add_hosted(self, part: Opaque) -> None:
        type_ = part.native["type"]
        if self._reasoning_lost and needs_id(type_):
            self._report_reasoning_lost(part.at, type_)
        elif item := self._fit(part.native, HOSTED[type_], type_, part.at):
            self._items.append((item, part.at))
            self._answerable |= {str(item.get("id")), str(item.get("call_id"))}

    def _add_context(self, part: Part) -> None:
        """Add a context item; a response to a hosted item only after that item."""
        if type(part) is not Opaque or part.home != RESPONSES:
            self._losses.append(inexpressible(part, RESPONSES))
            return
        type_ = part.native.get("type") or "item_reference"
        if type_ in ANSWERS and str(part.native.get(ANSWERS[type_])) not in self._answerable:
            what = f"an item of type {type_!r} was left out: the item it answers is missing"
            self._losses.append(Loss(part.at, what))
        elif item := self._fit(part.native, CONTEXT[type_], type_, part.at):
            self._items.append((item, part.at))
            self._input_written = True

    def _add_call(self, call: ToolCall) -> list[tuple[Native, int]]:
        """Add a call, and return its result to be added after all calls; drop both if one fails."""
        type_ = _TYPES.get(call.kind, call.kind)
        result = call.result
        if result is None:
            return []
        item = None
        if self._reasoning_lost and needs_id(type_):
            self._report_reasoning_lost(call.at, type_)
        elif type_ in SPECIAL_OUTPUTS and not _is_native(result, type_):
            what = f"a call of type {type_!r} was left out: it has no result of its own type"
            self._losses.append(Loss(call.at, what))
        else:
            item = self._fit_call(call, type_)
        output = None if item is None else self._output(call, result, type_, item)
        if item is None or output is None:
            what = f"a call of type {type_!r} was left out, and its result with it"
            self._losses += [Loss(call.at, what), Loss(result.at, what)]
            return []
        self._items.append((item, call.at))
        return [(output, result.at)]

    def _fit_call(self, call: ToolCall, type_: str) -> Native | None:
        changed = {"call_id": call.out_id}
        if type_ in ("function_call", "custom_tool_call"):
            changed["name"] = call.name
            changed["arguments" if type_ == "function_call" else "input"] = input_text(call)
        if call.native is None or call.home != RESPONSES or call.native.get("type") != type_:
            return {"type": type_, **changed}
        return self._fit({**call.native, **changed}, CALLS[type_], type_, call.at)

    def _output(self, call: ToolCall, result: Result, type_: str, item: Native) -> Native | None:
        id = item["id"] if type_ == "local_shell_call" else call.out_id
        plain = type_ in ("function_call", "custom_tool_call")
        if not plain and _is_native(result, type_):
            native = {**(result.native or {}), "call_id": id}
            spec = RESULTS[calls.OUTPUTS[type_]]
            if "call_id" not in spec.allowed:
                native["id"] = native.pop("call_id")
            else:
                native.pop("id", None)
            return self._fit(native, spec, calls.OUTPUTS[type_], result.at, is_output=True)
        tell_error(result, RESPONSES, self._losses)
        if not plain:
            return calls.item_output(type_, id, result_text(result, RESPONSES, self._losses))
        output: Native = {"type": calls.OUTPUTS[type_], "call_id": id}
        output["output"] = write_parts(result.parts, "user", self._losses) or ""
        if _is_native(result, type_) and result.native and result.native.get("caller") is not None:
            output["caller"] = result.native["caller"]
        return output

    def _fit(
        self, native: Native, spec: Any, type_: str, at: int, *, is_output: bool = False
    ) -> Native | None:
        """Trim an item, with a legal status and a unique id; None, and a loss, if that fails."""
        item = fit(native, spec, f"an item of type {type_!r}", at, self._losses)
        if item is None:
            return None
        if type_ != "message" or "type" in item:
            item["type"] = type_
        if "status" in item and not legal_status(item["status"], type_):
            if "status" in spec.required:
                what = f"an item of type {type_!r} was left out: its status is unknown"
                self._losses.append(Loss(at, what))
                return None
            del item["status"]
        if "id" in item and not is_output:
            if not legal_id(item["id"], type_) or item["id"] in self._ids:
                if "id" in spec.required:
                    what = (
                        f"an item of type {type_!r} was left out: its id is invalid or already used"
                    )
                    self._losses.append(Loss(at, what))
                    return None
                del item["id"]
            else:
                self._ids.add(item["id"])
        return item

    def _report_reasoning_lost(self, at: int, type_: str) -> None:
        what = f"an item of type {type_!r} was left out: its reasoning may be missing"
        self._losses.append(Loss(at, what))


_JOINED: Native = {}  # Marks that the last item is a new message, which further texts are added to.


def _is_native(result: Result, type_: str) -> bool:
    native = result.native
    return (
        native is not None
        and result.home == RESPONSES
        and native.get("type") == calls.OUTPUTS[type_]
    )
