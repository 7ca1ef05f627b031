"""The parts of a request to a model beside the messages: tools and instructions. Pure."""

from typing import Any

from perdure.formats.parts import ANTHROPIC, CHAT, GEMINI, RESPONSES
from perdure.formats.schemas import ToolDescription
from perdure.formats.transcript import Transcript


def tool_definition(tool: ToolDescription, format: str) -> dict[str, Any]:
    """Return a tool as the provider of a format expects it in a request."""
    described = {"name": tool.name, "description": tool.description}
    if format == CHAT:
        return {"type": "function", "function": {**described, "parameters": tool.parameters}}
    if format == RESPONSES:
        # Without `strict`, the API would demand that all parameters are required.
        return {
            "type": "function",
            **described,
            "parameters": tool.parameters,
            "strict": False,
        }
    if format == ANTHROPIC:
        return {**described, "input_schema": tool.parameters}
    return {**described, "parameters": tool.parameters}


def with_instructions(transcript: Transcript, format: str, text: str) -> Transcript:
    """Return a transcript that begins with instructions, where its format has them."""
    if not text:
        return transcript
    system = transcript.system
    if format == ANTHROPIC:
        block = {"type": "text", "text": text}
        is_text = system is None or isinstance(system, str)
        system = "\n\n".join(filter(None, [text, system])) if is_text else [block, *system]
        return Transcript(transcript, system=system)
    if format == GEMINI:
        parts = system["parts"] if system else []
        return Transcript(transcript, system={"parts": [{"text": text}, *parts]})
    return Transcript([{"role": "system", "content": text}, *transcript], system=system)
