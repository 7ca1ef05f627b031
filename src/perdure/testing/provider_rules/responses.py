"""The rules of OpenAI's Responses API for `input`. Pure.

Unlike chat completions, this API rejects every unknown field, so there is no lenient mode.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from perdure.testing.provider_rules.shapes import (
    Finding,
    Shape,
    check_fields,
    check_name,
    check_text,
    empty_array,
    is_list,
    objects_in_place,
    shape,
    wrong_type,
    wrong_value,
)

DEFAULT_STATUSES = ("in_progress", "completed", "incomplete")


ITEMS: dict[str, Shape] = {
    "additional_tools": shape("type role tools", "id~"),
    "apply_patch_call": shape("type call_id operation status", "id~ caller~"),
    "apply_patch_call_output": shape("type call_id status", "id~ caller~ output~"),
    "code_interpreter_call": shape("type id code~ container_id outputs~ status"),
    "compaction": shape("type encrypted_content", "id~"),
    "compaction_trigger": shape("type", "id~"),
    "computer_call": shape("type id call_id pending_safety_checks status", "action actions"),
    "computer_call_output": shape("type call_id output", "id~ acknowledged_safety_checks~ status~"),
    "configuration_update": shape("type", "id~ reasoning text"),
    "custom_tool_call": shape("type call_id name input", "id async caller~ namespace"),
    "custom_tool_call_output": shape("type call_id output", "id caller~"),
    "file_search_call": shape("type id queries status", "results~"),
    "function_call": shape("type call_id name arguments", "id async caller~ namespace status"),
    "function_call_output": shape("type output", "call_id~ id~ caller~ name~ namespace~ status~"),
    "image_generation_call": shape(
        "type id result~ status",
        "action~ background~ error output_format~ quality~ revised_prompt~ size~ svg_usage",
    ),
    "item_reference": shape("id", "type~"),
    "local_shell_call": shape("type id call_id action status"),
    "local_shell_call_output": shape("type id output", "status~"),
    "mcp_approval_request": shape("type id name arguments server_label"),
    "mcp_approval_response": shape("type approval_request_id approve", "id~ reason~"),
    "mcp_call": shape(
        "type id name arguments server_label", "approval_request_id~ error~ output~ status"
    ),
    "mcp_list_tools": shape("type id server_label tools", "error~"),
    "program": shape("type id call_id code fingerprint"),
    "program_output": shape("type id call_id result status"),
    "reasoning": shape("type id summary", "content encrypted_content~ status"),
    "shell_call": shape("type call_id action", "id~ caller~ environment~ status~"),
    "shell_call_output": shape("type call_id output", "id~ caller~ max_output_length~ status~"),
    "tool_search_call": shape("type arguments", "id~ call_id~ execution status~"),
    "tool_search_output": shape("type tools", "id~ call_id~ execution status~"),
    "web_search_call": shape("type id action status"),
}

MESSAGES = dict.fromkeys(
    ("user", "system", "developer", "assistant"), shape("role content", "type id status phase~")
)

PARTS: dict[str, Shape] = {
    "input_text": shape("type text", "prompt_cache_breakpoint~"),
    "input_image": shape("type", "detail~ file_id~ image_url~ prompt_cache_breakpoint~"),
    "input_file": shape(
        "type", "detail file_data~ file_id~ file_url~ filename~ prompt_cache_breakpoint~"
    ),
    "output_text": shape("type text", "annotations logprobs"),
    "refusal": shape("type refusal"),
    "summary_text": shape("type text"),
    "reasoning_text": shape("type text"),
}

PHASES = ("commentary", "final_answer")

INPUT = ("input_text", "input_image", "input_file")

OUTPUT = ("output_text", "refusal")


# Kinds with statuses other than `DEFAULT_STATUSES`.
STATUSES: dict[str, tuple[str, ...]] = {
    "apply_patch_call": ("in_progress", "completed"),
    "apply_patch_call_output": ("completed", "failed"),
    "code_interpreter_call": (*DEFAULT_STATUSES, "interpreting", "failed"),
    "file_search_call": (*DEFAULT_STATUSES, "searching", "failed"),
    "image_generation_call": ("in_progress", "completed", "generating", "failed"),
    "mcp_call": (*DEFAULT_STATUSES, "calling", "failed"),
    "program_output": ("completed", "incomplete"),
    "web_search_call": (*DEFAULT_STATUSES, "searching", "failed"),
}

PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}

# By kind of call: the item that answers it, the field with the id in both, and its name in texts.
CALL_OUTPUTS: dict[str, tuple[str, str, str]] = {
    "function_call": ("function_call_output", "call_id", "function call"),
    "custom_tool_call": ("custom_tool_call_output", "call_id", "custom tool call"),
    "computer_call": ("computer_call_output", "call_id", "computer call"),
    "local_shell_call": ("local_shell_call_output", "id", "local shell call"),
    "shell_call": ("shell_call_output", "call_id", "shell call"),
    "apply_patch_call": ("apply_patch_call_output", "call_id", "apply patch call"),
}

CALL_OF = {output: call for call, (output, _, _) in CALL_OUTPUTS.items()}

# Items that a model generates, and that can therefore follow its reasoning.
AFTER_REASONING = frozenset(
    {
        *(*CALL_OUTPUTS, "code_interpreter_call", "compaction", "file_search_call"),
        *("image_generation_call", "item_reference", "mcp_approval_request", "mcp_call"),
        *("mcp_list_tools", "program", "reasoning", "tool_search_call", "web_search_call"),
    }
)


ID = re.compile(r"^[a-zA-Z0-9_-]{1,64}$")

CALL_ID = re.compile(r"^.{1,64}$", re.DOTALL)

TOOL_NAME = re.compile(r"^[a-zA-Z0-9_-]{1,128}$")


def findings(
    items: Sequence[Mapping[str, Any]], *, reasoning_of: Mapping[str, str] | None = None
) -> Iterator[Finding]:
    """Yield every violation: item by item, then those of pairs and of reasoning.

    `reasoning_of` maps ids of items to the reasoning that they were generated with; the items
    themselves do not show it.
    """
    if not items:
        yield empty_array("input")
    for index, item in enumerate(items):
        yield from _item(item, f"input[{index}]")
    whole = objects_in_place(items)
    yield from _duplicates(whole)
    yield from _pairs(whole)
    yield from _dangling_reasoning(whole)
    yield from _missing_reasoning(whole, reasoning_of or {})
    for index, item in enumerate(whole[:-1]):
        if kind_of(item) == "compaction_trigger":
            yield Finding("A compaction trigger must be the final item.", f"input[{index}]")


def kind_of(item: Mapping[str, Any]) -> str:
    """Return the type of an item; messages and references may omit the field."""
    named = item.get("type")
    if named is None:
        return "message" if "role" in item else "item_reference"
    return named if isinstance(named, str) else ""


def _item(item: Any, at: str) -> Iterator[Finding]:
    if not isinstance(item, Mapping):
        yield wrong_type(at, "an object", item)
        return
    kind = kind_of(item)
    if kind == "message":
        yield from _message(item, at)
    elif kind not in ITEMS:
        yield wrong_value(f"{at}.type", item.get("type"), ["message", *ITEMS])
        return
    else:
        yield from check_fields(item, at, ITEMS[kind])
        yield from _nested(item, at, kind)
    statuses = STATUSES.get(kind, DEFAULT_STATUSES)
    if item.get("status") is not None and item["status"] not in statuses:
        yield wrong_value(f"{at}.status", item["status"], statuses)
    if item.get("id") is not None:
        yield from _id(item["id"], f"{at}.id", kind)


def _id(id: Any, at: str, kind: str) -> Iterator[Finding]:
    prefix = PREFIXES.get(kind, "")
    if not isinstance(id, str) or not ID.fullmatch(id):
        yield from check_name(id, at, ID)
    elif not id.startswith(prefix):
        text = f"Invalid '{at}': '{id}'. Expected an ID that begins with '{prefix}'."
        yield Finding(text, at, "invalid_value")


def _message(item: Mapping[str, Any], at: str) -> Iterator[Finding]:
    role = item.get("role")
    if not isinstance(role, str) or role not in MESSAGES:
        yield wrong_value(f"{at}.role", role, [*MESSAGES])
        return
    yield from check_fields(item, at, MESSAGES[role])
    if item.get("phase") is not None and item["phase"] not in PHASES:
        yield wrong_value(f"{at}.phase", item["phase"], PHASES)
    if item.get("content") is not None:
        allowed = OUTPUT if role == "assistant" else INPUT
        yield from _text_or_parts(item["content"], f"{at}.content", allowed)


def _nested(item: Mapping[str, Any], at: str, kind: str) -> Iterator[Finding]:
    """Yield violations inside the items that an application creates or sends back."""
    if kind in CALL_OF or kind in CALL_OUTPUTS:
        name = "id" if kind in ("local_shell_call_output", "local_shell_call") else "call_id"
        yield from check_name(item.get(name), f"{at}.{name}", CALL_ID)
    if kind in ("function_call", "custom_tool_call"):
        yield from check_name(item.get("name"), f"{at}.name", TOOL_NAME)
        yield from check_text(item, at, "arguments", "input")
    if kind in ("function_call_output", "custom_tool_call_output") and "output" in item:
        yield from _text_or_parts(item["output"], f"{at}.output", INPUT)
    if kind == "reasoning":
        yield from _parts(item.get("summary", ()), f"{at}.summary", ("summary_text",))
        yield from _parts(item.get("content", ()), f"{at}.content", ("reasoning_text",))


def _text_or_parts(value: Any, at: str, allowed: tuple[str, ...]) -> Iterator[Finding]:
    if isinstance(value, str):
        return
    if is_list(value) and not value:
        yield empty_array(at)
    yield from _parts(value, at, allowed)


def _parts(parts: Any, at: str, allowed: tuple[str, ...]) -> Iterator[Finding]:
    if not is_list(parts):
        yield wrong_type(at, "an array", parts)
        return
    for index, part in enumerate(parts):
        where = f"{at}[{index}]"
        name = part.get("type") if isinstance(part, Mapping) else None
        if name not in allowed:
            yield wrong_value(where, name, allowed)
            continue
        yield from check_fields(part, where, PARTS[name])
        yield from check_text(part, where, "text", "refusal")


def _duplicates(items: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    seen: set[str] = set()
    for item in items:
        id = item.get("id")
        if not isinstance(id, str) or kind_of(item) == "local_shell_call_output":
            continue  # that output has the id of its call
        if id in seen:
            text = f"Duplicate item found with id {id}. Remove duplicate items from your input "
            yield Finding(f"{text}and try again.", "input")
        seen.add(id)


def _pairs(items: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Yield calls without an output, outputs without a preceding call, and duplicates."""
    answered: dict[tuple[str, str], bool] = {}
    for item in items:
        kind = kind_of(item)
        if kind in CALL_OUTPUTS:
            _, field, name = CALL_OUTPUTS[kind]
            id = str(item.get(field))
            if (kind, id) in answered:
                yield Finding(f"Duplicate {name} with {field} {id}.", "input")
            answered.setdefault((kind, id), False)
        elif kind in CALL_OF:
            call = CALL_OF[kind]
            _, field, name = CALL_OUTPUTS[call]
            id = str(item.get(field))
            if (call, id) not in answered:
                text = f"No tool call found for {name} output with {field} {id}."
                yield Finding(text, "input")
            elif answered[call, id]:
                yield Finding(f"Duplicate {name} output with {field} {id}.", "input")
            else:
                answered[call, id] = True
    for (kind, id), has_output in answered.items():
        if not has_output:
            yield Finding(f"No tool output found for {CALL_OUTPUTS[kind][2]} {id}.", "input")


def _dangling_reasoning(items: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Yield reasoning that no generated item follows."""
    for index, item in enumerate(items):
        if kind_of(item) != "reasoning":
            continue
        after = items[index + 1] if index + 1 < len(items) else {"type": ""}
        is_answer = kind_of(after) == "message" and after.get("role") == "assistant"
        if not is_answer and kind_of(after) not in AFTER_REASONING:
            text = (
                f"Item '{item.get('id')}' of type 'reasoning' was provided without its required "
                "following item."
            )
            yield Finding(text, "input")


def _missing_reasoning(
    items: Sequence[Mapping[str, Any]], reasoning_of: Mapping[str, str]
) -> Iterator[Finding]:
    """Yield items whose reasoning does not precede them."""
    leading: set[str] = set()
    for item in items:
        kind = kind_of(item)
        id = item.get("id")
        if kind == "reasoning":
            leading.add(str(id))
        elif kind in CALL_OF or (kind == "message" and item.get("role") != "assistant"):
            leading.clear()
        if isinstance(id, str) and id in reasoning_of and reasoning_of[id] not in leading:
            text = (
                f"Item '{id}' of type '{kind}' was provided without its required 'reasoning' "
                f"item: '{reasoning_of[id]}'."
            )
            yield Finding(text, "input")
