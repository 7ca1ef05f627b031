"""Turns as Anthropic and Gemini give them, and as applications answer them."""

from typing import Any

from tests.promises.p13_source import PICTURE, SOURCES, Call, Drawn, Source


class Anthropic(Source):
    """Messages of blocks."""

    def anthropic_turn(self) -> list[Drawn]:
        blocks: list[dict[str, Any]] = [{"type": "text", "text": self.text()}]
        if self.odds(0.4):
            blocks.append(
                self.pick(
                    {"type": "image", "source": self.pick(*SOURCES)},
                    {"type": "document", "source": {"type": "text", "data": "words"}, "title": "t"},
                    {"type": "text", "text": "more", "cache_control": {"type": "ephemeral"}},
                    {"type": "search_result", "source": "s", "title": "t", "content": []},
                )
            )
        turn = [self.drawn({"role": "user", "content": blocks})]
        for _ in range(self.pick(0, 0, 1, 2)):
            turn += self._anthropic_calls()
        if self.odds(0.15):
            turn += self._paused()
        return [*turn, self._anthropic_answer()]

    def _paused(self) -> list[Drawn]:
        """Return an answer that a server's tool made so long that it came in two."""
        mark, id = self.mark(), self.id("srvtoolu_")
        asked = {"type": "server_tool_use", "id": id, "name": "web_search", "input": {"q": mark}}
        found = {"type": "web_search_tool_result", "tool_use_id": id, "content": []}
        first = Drawn({"role": "assistant", "content": [asked]}, mark, universal=False)
        second = {"role": "assistant", "content": [found, {"type": "text", "text": self.text()}]}
        return [first, self.drawn(second)]

    def _thinking(self) -> list[dict[str, Any]]:
        if self.odds(0.5):
            return []
        return [
            self.pick(
                {"type": "thinking", "thinking": "hm", "signature": "EqQB"},
                {"type": "redacted_thinking", "data": "opaque"},
            )
        ]

    def _anthropic_answer(self) -> Drawn:
        blocks = self._thinking()
        if self.odds(0.2):
            id = self.id("srvtoolu_")
            asked = {"type": "server_tool_use", "id": id, "name": "web_search", "input": {}}
            found = {"type": "web_search_tool_result", "tool_use_id": id, "content": []}
            blocks += [asked, found]
        blocks.append({"type": "text", "text": self.text(), "citations": None})
        message: dict[str, Any] = {"role": "assistant", "content": blocks}
        if self.odds(0.5):
            usage = {"input_tokens": 1, "output_tokens": 1}
            message |= {"id": self.id("msg_"), "type": "message", "model": "m"}
            message |= {"stop_reason": "end_turn", "stop_sequence": None, "usage": usage}
        return self.drawn(message)

    def _anthropic_calls(self) -> list[Drawn]:
        blocks = self._thinking()
        if self.odds(0.5):
            blocks.append({"type": "text", "text": "Let me see."})
        calls = self.calls("toolu_")
        blocks += [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": {"q": call.marker}}
            for call in calls
        ]
        turn = [Drawn({"role": "assistant", "content": blocks}, calls[0].marker)]
        together = self.odds(0.5)
        results = []
        for call in calls:
            results.append(self._tool_result(call))
            if not together:
                turn.append(self.drawn({"role": "user", "content": results}))
                results = []
        return [*turn, self.drawn({"role": "user", "content": results})] if together else turn

    def _tool_result(self, call: Call) -> dict[str, Any]:
        text = self.text()
        result: dict[str, Any] = {"type": "tool_result", "tool_use_id": call.id, "content": text}
        if self.odds(0.4):
            result["content"] = [{"type": "text", "text": text}]
            if self.odds(0.5):
                result["content"].append({"type": "image", "source": SOURCES[0]})
        if self.odds(0.3):
            result["is_error"] = self.odds(0.5)
        return result


class Gemini(Source):
    """Contents of parts, in the spelling of the SDK or of the API."""

    def gemini_turn(self) -> list[Drawn]:
        parts: list[dict[str, Any]] = [{"text": self.text()}]
        if self.odds(0.3):
            parts.append(
                self.pick(
                    {"inline_data": {"mime_type": "image/png", "data": b"\x89PNG"}},
                    {"inlineData": {"mimeType": "audio/wav", "data": PICTURE}},
                    {"file_data": {"file_uri": "https://e.org/f", "mime_type": "application/pdf"}},
                )
            )
        turn = [self.drawn({"role": "user", "parts": parts})]
        for _ in range(self.pick(0, 0, 1, 2)):
            turn += self._gemini_calls()
        parts = self._thoughts()
        if self.odds(0.2):
            code = {"executable_code": {"language": "PYTHON", "code": "1"}}
            parts += [code, {"code_execution_result": {"outcome": "OUTCOME_OK", "output": "1"}}]
        parts.append({"text": self.text()})
        return [*turn, self.drawn({"role": "model", "parts": parts})]

    def _thoughts(self) -> list[dict[str, Any]]:
        return [{"text": "hm", "thought": True}] if self.odds(0.3) else []

    def _gemini_calls(self) -> list[Drawn]:
        calls = self.calls("fc-")
        with_ids, snake = self.odds(0.5), self.odds(0.5)
        parts = self._thoughts()
        for call in calls:
            asked: dict[str, Any] = {"name": call.name, "args": {"q": call.marker}}
            asked |= {"id": call.id} if with_ids else {}
            part: dict[str, Any] = {"function_call" if snake else "functionCall": asked}
            if self.odds(0.5):
                part["thought_signature" if snake else "thoughtSignature"] = b"sig"
            parts.append(part)
        answers = []
        for call in calls:
            key = self.pick("output", "error", "result", "rows")
            given: dict[str, Any] = {"name": call.name, "response": {key: self.text()}}
            given |= {"id": call.id} if with_ids else {}
            answers.append({"function_response" if snake else "functionResponse": given})
        role = self.pick("user", "function")
        turn = [Drawn({"role": "model", "parts": parts}, calls[0].marker)]
        return [*turn, self.drawn({"role": role, "parts": answers})]
