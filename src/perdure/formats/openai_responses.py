"""Parse and write items of OpenAI's Responses API: results are items that follow their calls.

`read` turns a stored item into the neutral form, `write` the neutral form into items. Pure; never
changes a stored item. Content that cannot be written is reported as a loss.

The provider links an item's id to the reasoning that produced it, and rejects the id without that
reasoning. So an id is sent only on the item that directly follows its reasoning, or where the type
requires one.
"""

import re
from collections.abc import Sequence
from typing import Any

from perdure.formats import tool_calls
from perdure.formats.fields import (
    OPENAI_ROLES,
    Fields,
    as_text,
    dicts_in,
    fields,
    first_text,
    input_text,
    normalized,
    read_all,
    read_arguments,
    read_openai_file,
    read_output,
    report_error_flag,
    result_text,
    trim,
    unknown_fields,
)
from perdure.formats.parts import (
    RESPONSES,
    Loss,
    Losses,
    Media,
    Native,
    NormalizedMessage,
    Opaque,
    Part,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
    ToolResult,
    native_in,
    unsupported_part,
)

MESSAGE = fields("role content", "type id status phase")

PARTS: dict[str, Fields] = {
    "input_text": fields("type text", "prompt_cache_breakpoint"),
    "input_image": fields("type", "detail file_id image_url prompt_cache_breakpoint"),
    "input_file": fields(
        "type", "detail file_data file_id file_url filename prompt_cache_breakpoint"
    ),
    "output_text": fields("type text", "annotations logprobs"),
    "refusal": fields("type refusal"),
}

CALLS: dict[str, Fields] = {
    "apply_patch_call": fields("type call_id operation status", "id caller"),
    "computer_call": fields("type id call_id pending_safety_checks status", "action actions"),
    "custom_tool_call": fields("type call_id name input", "id async caller namespace"),
    "function_call": fields("type call_id name arguments", "id async caller namespace status"),
    "local_shell_call": fields("type id call_id action status"),
    "shell_call": fields("type call_id action", "id caller environment status"),
    "tool_search_call": fields("type arguments", "id call_id execution status"),
}

RESULTS: dict[str, Fields] = {
    "apply_patch_call_output": fields("type call_id status", "id caller output"),
    "computer_call_output": fields("type call_id output", "id acknowledged_safety_checks status"),
    "custom_tool_call_output": fields("type call_id output", "id caller"),
    "function_call_output": fields("type call_id output", "id caller name namespace status"),
    "local_shell_call_output": fields("type id output", "status"),
    "shell_call_output": fields("type call_id output", "id caller max_output_length status"),
    "tool_search_output": fields("type tools", "id call_id execution status"),
}

# Calls of tools that the provider runs.
HOSTED: dict[str, Fields] = {
    "code_interpreter_call": fields("type id code? container_id outputs? status"),
    "file_search_call": fields("type id queries status", "results"),
    "image_generation_call": fields(
        "type id result? status",
        "action background error output_format quality revised_prompt size svg_usage",
    ),
    "mcp_approval_request": fields("type id name arguments server_label"),
    "mcp_call": fields(
        "type id name arguments server_label", "approval_request_id error output status"
    ),
    "mcp_list_tools": fields("type id server_label tools", "error"),
    "program": fields("type id call_id code fingerprint"),
    "tool_search_call": CALLS["tool_search_call"],
    "web_search_call": fields("type id action status"),
}

# Items that are neither input nor answer.
CONTEXT: dict[str, Fields] = {
    "additional_tools": fields("type role tools", "id"),
    "compaction": fields("type encrypted_content", "id"),
    "configuration_update": fields("type", "id reasoning text"),
    "item_reference": fields("id", "type"),
    "mcp_approval_response": fields("type approval_request_id approve", "id reason"),
    "program_output": fields("type id call_id result status"),
    "tool_search_output": RESULTS["tool_search_output"],
}

# Answers to hosted items, and the field that names the item.
ANSWERS = {"mcp_approval_response": "approval_request_id", "program_output": "call_id"}

REASONING = fields("type id summary", "content encrypted_content status")

_COMMON_STATUSES = frozenset({"in_progress", "completed", "incomplete"})

_STATUSES = {
    "apply_patch_call": frozenset({"in_progress", "completed"}),
    "apply_patch_call_output": frozenset({"completed", "failed"}),
    "code_interpreter_call": _COMMON_STATUSES | {"interpreting", "failed"},
    "file_search_call": _COMMON_STATUSES | {"searching", "failed"},
    "image_generation_call": frozenset({"in_progress", "completed", "generating", "failed"}),
    "mcp_call": _COMMON_STATUSES | {"calling", "failed"},
    "program_output": frozenset({"completed", "incomplete"}),
    "web_search_call": _COMMON_STATUSES | {"searching", "failed"},
}

_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}

_ID_PATTERN = re.compile(r"[a-zA-Z0-9_-]{1,64}")

# Calls whose output (a screenshot, a list of tools) cannot be replaced by a text.
SPECIAL_OUTPUTS = frozenset({"computer_call", "tool_search_call"})


def is_legal_id(id: object, type_: str) -> bool:
    text = as_text(id)
    return _ID_PATTERN.fullmatch(text) is not None and text.startswith(_PREFIXES.get(type_, ""))


def is_legal_status(status: object, type_: str) -> bool:
    return type(status) is str and status in _STATUSES.get(type_, _COMMON_STATUSES)


def needs_id(type_: str) -> bool:
    tables = (HOSTED, CALLS, CONTEXT, RESULTS)
    spec = next((table[type_] for table in tables if type_ in table), None)
    return type_ == "reasoning" or (spec is not None and "id" in spec.required)


def is_whole_reasoning(item: Native) -> bool:
    """Whether all parts of reasoning are texts of the expected types."""
    parts = [(part, "summary_text") for part in _as_list(item["summary"])]
    parts += [(part, "reasoning_text") for part in _as_list(item.get("content", []))]
    return all(
        type(part) is dict
        and part.keys() == {"type", "text"}
        and part["type"] == type_
        and type(part["text"]) is str
        for part, type_ in parts
    )


def _as_list(parts: Any) -> list[Any]:
    return parts if type(parts) is list else [parts]


def read_part(part: Any, at: int) -> Part | None:
    """Parse a part of a message or a result; None if it is an empty text."""
    if type(part) is str:
        return Text(at, part) if part else None
    if part is None:
        return None
    kind = part.get("type") if type(part) is dict else ""
    if kind in ("input_text", "output_text") and type(part.get("text")) is str:
        native = part if kind == "input_text" else None
        return Text(at, part["text"], native, RESPONSES if native else "") if part["text"] else None
    if kind == "refusal" and type(part.get("refusal")) is str:
        return Refusal(at, part["refusal"]) if part["refusal"] else None
    media_part: Media | None = None
    if kind == "input_image":
        image = _read_image(part, at)
        media_part = image and image._replace(detail=first_text(part, "detail"))
    elif kind == "input_file":
        media_part = read_openai_file(at, part)
    if media_part is None:
        return Opaque(at, f"a part of type {kind!r}" if kind else "a part", {}, "")
    return media_part._replace(native=part, home=RESPONSES)


def _read_image(image: Native, at: int) -> Media | None:
    if url := first_text(image, "image_url"):
        return Media.from_url(at, "image", url)
    id = first_text(image, "file_id")
    return Media(at, "image", file_id=id, home=RESPONSES) if id else None


def write_parts(parts: Sequence[Part], role: str, losses: Losses) -> str | list[Native]:
    """Write parts as a list; a single text as a str, unless its stored message had a list."""
    written: list[Native] = []
    plain = True
    for part in parts:
        native: Native | None = None
        if type(part) is Text or type(part) is Refusal:
            native = {"type": "input_text", "text": part.text}
            stored = native_in(part, RESPONSES)
            if stored is not None and type(part) is Text:
                native = trim(stored, PARTS["input_text"], "a text", part.at, losses)
                plain = False
        elif type(part) is Media and role == "user":
            native = _write_media(part, losses)
        if native is not None:
            written.append(native)
        else:
            losses.append(unsupported_part(part, RESPONSES, f"from the {role}"))
    if plain and len(written) == 1 and written[0]["type"] == "input_text":
        alone: str = written[0]["text"]
        return alone
    return written


def _write_media(part: Media, losses: Losses) -> Native | None:
    native = native_in(part, RESPONSES)
    if native is not None:
        return trim(native, PARTS[native["type"]], "a part", part.at, losses)
    own_id = part.file_id_for(RESPONSES)
    if part.kind == "image" and (part.url or part.data):
        url = part.url or part.data_url
        return {"type": "input_image", "image_url": url, "detail": part.detail or "auto"}
    if part.kind == "image" and own_id:
        return {"type": "input_image", "file_id": own_id, "detail": "auto"}
    if part.kind == "file" and part.data:
        name = part.name or "file"
        return {"type": "input_file", "filename": name, "file_data": part.data_url}
    if part.kind == "file" and (part.url or own_id):
        source = {"file_url": part.url} if part.url else {"file_id": own_id}
        return {"type": "input_file", **source}
    return None


_CALL_KINDS = {"function_call": "function", "custom_tool_call": "custom"}

_NOT_INPUT_FIELDS = frozenset(
    {"type", "id", "call_id", "status", "caller", "pending_safety_checks"}
)


def read(item: Native, at: int) -> NormalizedMessage:
    """Parse one item; an item that is neither input nor answer has the role `context`."""
    type_ = as_text(item.get("type")) or ("message" if "role" in item else "")
    if item.keys() == {"id"}:
        type_ = "item_reference"
    if type_ == "message":
        return _read_message(item, at)
    role = "assistant"
    part: Part
    if type_ in CALLS and tool_calls.item_call_id(item):
        part = _read_call(item, type_, at)
    elif type_ in RESULTS and tool_calls.item_output_id(item):
        role, part = "user", _read_result(item, type_, at)
    elif type_ == "reasoning":
        part = Reasoning(at, item, RESPONSES)
    else:
        role = "assistant" if type_ in HOSTED else "context"
        home = RESPONSES if type_ in HOSTED or type_ in CONTEXT else ""
        part = Opaque(at, f"an item of type {type_!r}", item, home)
    return NormalizedMessage(at, role, [part], RESPONSES)


def _read_message(item: Native, at: int) -> NormalizedMessage:
    content = item.get("content")
    parts = read_all(content, at, read_part)
    if item.get("role") == "assistant":
        # The item is sent back whole, unless a part of it is not an answer part.
        is_whole = all(type(part) is dict and _is_answer_part(part) for part in _as_list(content))
        native, home = (item, RESPONSES) if is_whole else (None, "")
        parts = [
            part._replace(native=native, home=home) if isinstance(part, Text | Refusal) else part
            for part in parts
        ]
    else:
        parts += unknown_fields(item, MESSAGE.allowed | {"name"}, at)
    return normalized(item, at, parts, OPENAI_ROLES, RESPONSES)


def _is_answer_part(part: Native) -> bool:
    if part.get("type") == "refusal":
        return type(part.get("refusal")) is str
    return part.get("type") == "output_text" and type(part.get("text")) is str


def _read_call(item: Native, type_: str, at: int) -> ToolCall:
    if type_ in _CALL_KINDS:
        field = "input" if type_ == "custom_tool_call" else "arguments"
        arguments = read_arguments(item.get(field))
    else:
        arguments = {name: value for name, value in item.items() if name not in _NOT_INPUT_FIELDS}
    (call,) = tool_calls.open_calls(item)
    id = as_text(item.get("call_id"))
    kind = _CALL_KINDS.get(type_, type_)
    return ToolCall(at, id, call.name, arguments, kind=kind, native=item, home=RESPONSES)


def fields_of_answers(item: Native, at: int) -> list[Opaque]:
    """Return the unknown fields of an answer's message or call, which other formats do not get.

    In its own format, the item is sent back as it was, and its unknown fields are reported then.
    """
    type_ = as_text(item.get("type")) or ("message" if "role" in item else "")
    if type_ == "message":
        is_answer = item.get("role") == "assistant"
        return unknown_fields(item, MESSAGE.allowed | {"name"}, at) if is_answer else []
    return unknown_fields(item, CALLS[type_].allowed, at) if type_ in _CALL_KINDS else []


def _read_result(item: Native, type_: str, at: int) -> ToolResult:
    output = item.get("output")
    parts: list[Any] = []
    if type_ == "shell_call_output":
        for command in dicts_in(output):
            streams = [as_text(command.get("stdout")), as_text(command.get("stderr"))]
            if text := "\n".join(stream for stream in streams if stream):
                parts.append(Text(at, text))
    elif type_ == "computer_call_output" and type(output) is dict:
        parts.append(_read_image(output, at) or Opaque(at, "a screenshot", output, RESPONSES))
    elif type_ == "tool_search_output":
        parts.append(Opaque(at, "a list of found tools", item, RESPONSES))
    else:
        parts = read_output(output, at, read_part)
    parts += unknown_fields(item, RESULTS[type_].allowed, at)
    id = as_text(item.get("call_id")) or (tool_calls.item_output_id(item) if "id" in item else "")
    failed = item.get("status") == "failed"
    return ToolResult(at, id, as_text(item.get("name")), parts, failed, item, RESPONSES)


_ITEM_TYPES = {
    "function": "function_call",
    "deprecated": "function_call",
    "custom": "custom_tool_call",
}


def write(messages: list[NormalizedMessage], losses: Losses) -> tuple[list[Native], None]:
    """Write messages as items."""
    writer = _ItemWriter(losses)
    for message in messages:
        writer.add(message)
    return writer.finish(), None


_REASONING_LOST = "its reasoning may be missing"


class _ItemWriter:
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

    def add(self, message: NormalizedMessage) -> None:
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
        message: Native | None = (
            None  # The stored item, or `_JOINED_MESSAGE`, that texts are added to.
        )
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
                self._losses.append(unsupported_part(part, RESPONSES, "from the assistant"))
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
            self._losses.append(unsupported_part(Reasoning(at, item, RESPONSES), RESPONSES))

    def _add_text(self, part: Text | Refusal, message: Native | None) -> Native | None:
        """Add a stored answer's item once for all its parts; other texts form a new message."""
        if part.native is not None and part.home == RESPONSES:
            if part.native is not message and (item := self._fit_message(part)):
                self._items.append((item, part.at))
            return part.native
        written: Native = {"type": "output_text", "text": part.text, "annotations": []}
        if type(part) is Refusal:
            written = {"type": "refusal", "refusal": part.text}
        last = self._items[-1][0] if self._items and message is _JOINED_MESSAGE else None
        if last is not None:
            if type(last["content"]) is str:
                text = {"type": "output_text", "text": last["content"], "annotations": []}
                last["content"] = [text]
            last["content"].append(written)
        elif type(part) is Text:
            self._items.append(({"role": "assistant", "content": part.text}, part.at))
        else:
            self._items.append(({"role": "assistant", "content": [written]}, part.at))
        return _JOINED_MESSAGE

    def _fit_message(self, part: Text | Refusal) -> Native | None:
        native = part.native or {}
        item = self._fit(native, MESSAGE, "message", part.at)
        if item is not None:
            trimmed = [
                trim(stored, PARTS[stored["type"]], "a part", part.at, self._losses)
                for stored in native["content"]
            ]
            item["content"] = [written for written in trimmed if written]
        return item

    def _add_reasoning(self, part: Reasoning) -> None:
        item = self._fit(part.native, REASONING, "reasoning", part.at)
        if item is None:
            self._reasoning_lost = True
        elif not is_whole_reasoning(item):
            self._losses.append(unsupported_part(part, RESPONSES))
            self._reasoning_lost = True
        else:
            self._reasoning_lost = False
            self._items.append((item, part.at))

    def _add_hosted(self, part: Opaque) -> None:
        type_ = part.native["type"]
        if self._reasoning_lost and needs_id(type_):
            self._leave_out(part.at, type_, _REASONING_LOST)
        elif item := self._fit(part.native, HOSTED[type_], type_, part.at):
            self._items.append((item, part.at))
            self._answerable |= {str(item.get("id")), str(item.get("call_id"))}

    def _add_context(self, part: Part) -> None:
        """Add a context item; a response to a hosted item only after that item."""
        if type(part) is not Opaque or part.home != RESPONSES:
            self._losses.append(unsupported_part(part, RESPONSES))
            return
        type_ = part.native.get("type") or "item_reference"
        if type_ in ANSWERS and str(part.native.get(ANSWERS[type_])) not in self._answerable:
            self._leave_out(part.at, type_, "the item it answers is missing")
        elif item := self._fit(part.native, CONTEXT[type_], type_, part.at):
            self._items.append((item, part.at))
            self._input_written = True

    def _add_call(self, call: ToolCall) -> list[tuple[Native, int]]:
        """Add a call, and return its result to be added after all calls; drop both if one fails."""
        type_ = _ITEM_TYPES.get(call.kind, call.kind)
        result = call.result
        if result is None:
            return []
        item = None
        if self._reasoning_lost and needs_id(type_):
            self._leave_out(call.at, type_, _REASONING_LOST)
        elif type_ in SPECIAL_OUTPUTS and not _is_native_result(result, type_):
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

    def _output(
        self, call: ToolCall, result: ToolResult, type_: str, item: Native
    ) -> Native | None:
        id = item["id"] if type_ == "local_shell_call" else call.out_id
        output_type = tool_calls.OUTPUT_TYPES[type_]
        plain = type_ in ("function_call", "custom_tool_call")
        if not plain and _is_native_result(result, type_):
            native = {**(result.native or {}), "call_id": id}
            spec = RESULTS[output_type]
            if "call_id" not in spec.allowed:
                native["id"] = native.pop("call_id")
            else:
                native.pop("id", None)
            return self._fit(native, spec, output_type, result.at, is_output=True)
        report_error_flag(result, RESPONSES, self._losses)
        if not plain:
            return tool_calls.item_output(type_, id, result_text(result, RESPONSES, self._losses))
        output: Native = {"type": output_type, "call_id": id}
        output["output"] = write_parts(result.parts, "user", self._losses) or ""
        native = (result.native or {}) if _is_native_result(result, type_) else {}
        if native.get("caller") is not None:
            output["caller"] = native["caller"]
        return output

    def _fit(
        self, native: Native, spec: Any, type_: str, at: int, *, is_output: bool = False
    ) -> Native | None:
        """Trim an item, with a legal status and a unique id; None, and a loss, if that fails."""
        item = trim(native, spec, f"an item of type {type_!r}", at, self._losses)
        if item is None:
            return None
        if type_ != "message" or "type" in item:
            item["type"] = type_
        if "status" in item and not is_legal_status(item["status"], type_):
            if "status" in spec.required:
                self._leave_out(at, type_, "its status is unknown")
                return None
            del item["status"]
        if "id" in item and not is_output:
            if not is_legal_id(item["id"], type_) or item["id"] in self._ids:
                if "id" in spec.required:
                    self._leave_out(at, type_, "its id is invalid or already used")
                    return None
                del item["id"]
            else:
                self._ids.add(item["id"])
        return item

    def _leave_out(self, at: int, type_: str, reason: str) -> None:
        self._losses.append(Loss(at, f"an item of type {type_!r} was left out: {reason}"))


_JOINED_MESSAGE: Native = {}  # marker: the last item is a new message, and further texts join it


def _is_native_result(result: ToolResult, type_: str) -> bool:
    native = native_in(result, RESPONSES)
    return native is not None and native.get("type") == tool_calls.OUTPUT_TYPES[type_]
