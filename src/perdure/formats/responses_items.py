"""Item types of OpenAI's Responses API: their fields, and their role in a conversation. Pure.

The fields are those that a request may have; the API rejects any other. An item of a type that is
not listed here is never sent: an item that the API rejects would block the conversation.
"""

import re
from typing import Any

from perdure.formats.fields import Fields, fields
from perdure.formats.parts import Native

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

_DONE = frozenset({"in_progress", "completed", "incomplete"})
_STATUSES = {
    "apply_patch_call": frozenset({"in_progress", "completed"}),
    "apply_patch_call_output": frozenset({"completed", "failed"}),
    "code_interpreter_call": _DONE | {"interpreting", "failed"},
    "file_search_call": _DONE | {"searching", "failed"},
    "image_generation_call": frozenset({"in_progress", "completed", "generating", "failed"}),
    "mcp_call": _DONE | {"calling", "failed"},
    "program_output": frozenset({"completed", "incomplete"}),
    "web_search_call": _DONE | {"searching", "failed"},
}
_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}
_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")

# Calls whose output (a screenshot, a list of tools) cannot be replaced by a text.
SPECIAL_OUTPUTS = frozenset({"computer_call", "tool_search_call"})


def legal_id(id: object, type_: str) -> bool:
    return (
        type(id) is str
        and _ID.fullmatch(id) is not None
        and id.startswith(_PREFIXES.get(type_, ""))
    )


def legal_status(status: object, type_: str) -> bool:
    return type(status) is str and status in _STATUSES.get(type_, _DONE)


def needs_id(type_: str) -> bool:
    tables = (HOSTED, CALLS, CONTEXT, RESULTS)
    spec = next((table[type_] for table in tables if type_ in table), None)
    return type_ == "reasoning" or (spec is not None and "id" in spec.required)


def reasoning_is_whole(item: Native) -> bool:
    """Whether all parts of reasoning are texts of the expected types."""
    parts = [(part, "summary_text") for part in _listed(item["summary"])]
    parts += [(part, "reasoning_text") for part in _listed(item.get("content", []))]
    return all(
        type(part) is dict
        and part.keys() == {"type", "text"}
        and part["type"] == type_
        and type(part["text"]) is str
        for part, type_ in parts
    )


def _listed(parts: Any) -> list[Any]:
    return parts if type(parts) is list else [parts]
