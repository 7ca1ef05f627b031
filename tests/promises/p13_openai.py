"""Turns as OpenAI's two APIs give them, and as applications answer them."""

from typing import Any

from tests.promises.p13_source import PICTURE, Call, Drawn, Source


class Chat(Source):
    """Chat completions."""

    def chat_turn(self) -> list[Drawn]:
        turn = [self._chat_user()]
        for _ in range(self.pick(0, 0, 1, 2)):
            turn += self._chat_deprecated() if self.odds(0.15) else self._chat_calls()
        answer: dict[str, Any] = {"role": "assistant", "content": self.text()}
        if self.odds(0.3):
            answer |= {
                "refusal": None,
                "annotations": [],
                "tool_calls": None,
                "function_call": None,
            }
        if self.odds(0.1):
            answer = {"role": "assistant", "content": None, "refusal": self.text()}
        if self.odds(0.1):
            sound: dict[str, Any] = {
                "id": self.id("audio_"),
                "data": "AAAA",
                "expires_at": 1,
                "transcript": "",
            }
            answer |= {"audio": {**sound, "transcript": answer.get("content")}, "content": None}
            return [*turn, Drawn(answer, sound["id"], universal=False)]
        if self.odds(0.2):
            answer["parsed"] = {"a": 1}
        return [*turn, self.drawn(answer)]

    def _chat_user(self) -> Drawn:
        text = self.text()
        message: dict[str, Any] = {"role": "user", "content": text}
        if self.odds(0.3):
            url = self.pick("https://example.org/a.png", f"data:image/png;base64,{PICTURE}")
            other = self.pick(
                {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
                {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
                {"type": "file", "file": {"file_id": "file-1"}},
                {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA"}},
            )
            message["content"] = [{"type": "text", "text": text}, other]
        if self.odds(0.1):
            message["name"] = self.pick("ann", "Ann B")
        return self.drawn(message)

    def _chat_calls(self) -> list[Drawn]:
        tool_calls: list[dict[str, Any]] = []
        calls = self.calls("call_")
        for call in calls:
            if self.odds(0.2):
                asked = {"name": call.name, "input": f"free {call.marker}"}
                tool_calls.append({"id": call.id, "type": "custom", "custom": asked})
            else:
                asked = {"name": call.name, "arguments": self.arguments(call)}
                tool_calls.append({"id": call.id, "type": "function", "function": asked})
        content = self.pick(None, "", self.text())
        message = {"role": "assistant", "content": content, "tool_calls": tool_calls}
        if self.odds(0.2):
            message |= {"refusal": None, "annotations": [], "audio": None}
        if not self.tame and self.odds(0.2):
            message["reasoning_content"] = "hm"
        if content is None and self.odds(0.3):
            del message["content"]
        self.marker = calls[0].marker
        turn = [self.drawn(message)]
        if self.odds(0.1):
            several = [{"tool_call_id": call.id, "content": self.text()} for call in calls]
            return [*turn, self.drawn({"role": "tool", "tool_responses": several})]
        for call in calls:
            text: Any = self.text()
            if self.odds(0.2):
                text = [{"type": "text", "text": text}]
            turn.append(self.drawn({"role": "tool", "tool_call_id": call.id, "content": text}))
        return turn

    def _chat_deprecated(self) -> list[Drawn]:
        call = self.calls("call_")[0]
        asked = {"name": call.name, "arguments": self.arguments(call)}
        turn = [Drawn({"role": "assistant", "content": None, "function_call": asked}, call.marker)]
        result = {"role": "function", "name": call.name, "content": self.text()}
        return [*turn, self.drawn(result)]


class Responses(Source):
    """The Responses API."""

    def responses_turn(self) -> list[Drawn]:
        text = self.text()
        message: dict[str, Any] = {"role": "user", "content": text}
        if self.odds(0.5):
            other = self.pick(
                {"type": "input_image", "image_url": "https://example.org/a.png", "detail": "auto"},
                {"type": "input_file", "file_id": "file-1"},
                {"type": "input_text", "text": "more"},
            )
            parts = [{"type": "input_text", "text": text}, other]
            message = {"type": "message", "role": "user", "content": parts}
        turn = [self.drawn(message)]
        if self.odds(0.1):
            turn.append(self._context())
        for _ in range(self.pick(0, 0, 1, 2)):
            turn += self._responses_calls()
        turn += self._answer_items(last=self._answer())
        return turn

    def _answer(self) -> Drawn:
        text = self.text()
        part: dict[str, Any] = {"type": "output_text", "text": text}
        part |= {"annotations": [], "logprobs": []}
        if self.odds(0.1):
            part = {"type": "refusal", "refusal": text}
        elif self.odds(0.2):
            part |= {"parsed": None}
        item = {"id": self.id("msg_"), "type": "message", "role": "assistant", "content": [part]}
        if self.odds(0.1):
            item["id"] = "__fake_id__"
        status = self.pick("completed", "completed", "incomplete")
        return self.drawn({**item, "status": status})

    def _answer_items(self, *, last: Drawn) -> list[Drawn]:
        """Return what leads to the last item of an answer, and that item."""
        items: list[Drawn] = []
        if self.odds(0.6):
            items.append(self._reasoning())
        if self.odds(0.15):
            items.append(self._hosted())
        items.append(last)
        self._led(items)
        return items

    def _led(self, items: list[Drawn]) -> None:
        first = items[0].message
        if first.get("type") != "reasoning":
            return
        for each in items[1:]:
            # A local shell's output bears the id of its call: it would look like a second item.
            if "id" in each.message and each.message["type"] != "local_shell_call":
                self.reasoning_of[each.message["id"]] = first["id"]

    def _reasoning(self) -> Drawn:
        summary = [{"type": "summary_text", "text": self.text()}]
        item: dict[str, Any] = {"id": self.id("rs_"), "type": "reasoning", "summary": summary}
        if self.odds(0.5):
            item |= {"encrypted_content": "gAAAA", "content": None, "status": None}
        return self.drawn(item, universal=False)

    def _hosted(self) -> Drawn:
        mark = self.mark()
        id = self.id("x_")
        self.hosted.add(id)
        item = self.pick(
            {"type": "web_search_call", "action": {"type": "search", "query": mark}},
            {"type": "file_search_call", "queries": [mark], "results": None},
            {"type": "mcp_call", "name": "t", "arguments": mark, "server_label": "s"},
            {"type": "code_interpreter_call", "code": mark, "container_id": "c", "outputs": None},
        )
        return Drawn({"id": id, "status": "completed", **item}, mark, universal=False)

    def _context(self) -> Drawn:
        mark = self.mark()
        item = self.pick(
            {"type": "compaction", "encrypted_content": mark, "id": self.id("cmp_")},
            {"type": "item_reference", "id": f"msg_{mark}"},
        )
        if not self.tame and self.odds(0.5):
            item = self.pick(
                {"type": "brand_new_thing", "payload": mark},
                {"type": "mcp_approval_response", "approval_request_id": mark, "approve": True},
            )
        return Drawn(item, mark, universal=False)

    def _responses_calls(self) -> list[Drawn]:
        turn: list[Drawn] = []
        if self.odds(0.6):
            turn.append(self._reasoning())
        calls = self.calls("call_")
        made = [self._responses_call(call) for call in calls]
        turn += [call for call, _ in made]
        self._led(turn)
        return turn + [result for _, result in made]

    def _responses_call(self, call: Call) -> tuple[Drawn, Drawn]:
        type_ = self.pick(
            "function",
            "function",
            "function",
            "custom_tool",
            "shell",
            "local_shell",
            "apply_patch",
            "computer",
        )
        item: dict[str, Any] = {"type": f"{type_}_call", "call_id": call.id, "status": "completed"}
        text = self.text()
        result: dict[str, Any] = {
            "type": f"{type_}_call_output",
            "call_id": call.id,
            "output": text,
        }
        match type_:
            case "function":
                item |= {"name": call.name, "arguments": self.arguments(call)}
                item |= {"id": self.id("fc_"), "parsed_arguments": {"a": 1}}
                if self.odds(0.3):
                    result["output"] = [{"type": "input_text", "text": text}]
            case "custom_tool":
                item |= {"name": call.name, "input": call.marker, "id": self.id("ctc_")}
                del item["status"]
            case "shell":
                item |= {"action": {"commands": [call.marker]}}
                outcome = {"type": "exit", "exit_code": 0}
                result["output"] = [{"stdout": text, "stderr": "", "outcome": outcome}]
            case "local_shell":
                item |= {"id": self.id("lsh_"), "action": {"command": [call.marker]}}
                result = {"type": "local_shell_call_output", "id": call.id, "output": text}
                self.hosted.add(item["id"])
            case "apply_patch":
                item |= {"operation": {"type": "delete_file", "path": call.marker}}
                result["status"] = self.pick("completed", "failed")
            case "computer":
                item |= {"id": self.id("cu_"), "pending_safety_checks": []}
                item |= {"action": {"type": "type", "text": call.marker}}
                shot = {"type": "computer_screenshot", "image_url": f"https://e.org/{self.marker}"}
                result["output"] = shot
                self.hosted.add(item["id"])
        special = type_ == "computer"
        return Drawn(item, call.marker), self.drawn(result, universal=not special)
