"""The items that OpenAI's Responses API takes as input: their fields, statuses, ids and pairs.

What a hosted tool puts inside its own items (actions, results, screenshots) is not looked into.
"""

from perdure.testing.rules_shapes import Shape, shape

DONE = ("in_progress", "completed", "incomplete")

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
MESSAGES: dict[str, Shape] = {
    "user": shape("role content", "type id status phase~"),
    "system": shape("role content", "type id status phase~"),
    "developer": shape("role content", "type id status phase~"),
    "assistant": shape("role content", "type id status phase~"),
}
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
INPUT = ("input_text", "input_image", "input_file")
OUTPUT = ("output_text", "refusal")

# Kinds with statuses other than `DONE`.
STATUSES: dict[str, tuple[str, ...]] = {
    "apply_patch_call": ("in_progress", "completed"),
    "apply_patch_call_output": ("completed", "failed"),
    "code_interpreter_call": (*DONE, "interpreting", "failed"),
    "file_search_call": (*DONE, "searching", "failed"),
    "image_generation_call": ("in_progress", "completed", "generating", "failed"),
    "mcp_call": (*DONE, "calling", "failed"),
    "program_output": ("completed", "incomplete"),
    "web_search_call": (*DONE, "searching", "failed"),
}
PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
}
# A call, the item that answers it, the field of each that holds the id, and how the call is named.
ANSWERS: dict[str, tuple[str, str, str]] = {
    "function_call": ("function_call_output", "call_id", "function call"),
    "custom_tool_call": ("custom_tool_call_output", "call_id", "custom tool call"),
    "computer_call": ("computer_call_output", "call_id", "computer call"),
    "local_shell_call": ("local_shell_call_output", "id", "local shell call"),
    "shell_call": ("shell_call_output", "call_id", "shell call"),
    "apply_patch_call": ("apply_patch_call_output", "call_id", "apply patch call"),
}
CALL_OF = {output: call for call, (output, _, _) in ANSWERS.items()}
# What a model says or does, and so can follow its reasoning.
FOLLOWS = frozenset(
    {
        *ANSWERS,
        "code_interpreter_call",
        "compaction",
        "file_search_call",
        "image_generation_call",
        "item_reference",
        "mcp_approval_request",
        "mcp_call",
        "mcp_list_tools",
        "program",
        "reasoning",
        "tool_search_call",
        "web_search_call",
    }
)
