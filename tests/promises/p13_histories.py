"""Whole conversations of mixed formats, and what crashes and careless programs make of them."""

import random
from collections.abc import Callable
from typing import Any, NamedTuple

from perdure.formats.parts import StoredMessage
from perdure.formats.transcript import safe_cuts
from tests.promises.p13_openai import Chat, Responses
from tests.promises.p13_others import Anthropic, Gemini
from tests.promises.p13_source import AUTHORS, ROLES, Drawn

FORMATS = ("openai.chat", "openai.responses", "anthropic", "gemini")


class History(NamedTuple):
    """What was stored; `markers` and `universal` tell, by position, what is in each message."""

    said: list[StoredMessage]
    markers: dict[int, str]
    universal: set[int]
    reasoning_of: dict[str, str]
    formats: tuple[str, ...]
    whole: bool


class Drawing(Chat, Responses, Anthropic, Gemini):
    """Draws histories."""

    def history(self) -> History:
        formats = FORMATS if self.odds(0.5) else (self.pick(*FORMATS),)
        turns: dict[str, Callable[[], list[Drawn]]] = {
            "openai.chat": self.chat_turn,
            "openai.responses": self.responses_turn,
            "anthropic": self.anthropic_turn,
            "gemini": self.gemini_turn,
        }
        drawn = [self.system()] if self.odds(0.4) else []
        for _ in range(self.pick(0, 1, 1, 2, 3)):
            drawn += turns[self.pick(*formats)]()
            if self.odds(0.05):
                drawn.append(self.system())
        said = [StoredMessage(number, each.message) for number, each in enumerate(drawn, 1)]
        if not self.tame:
            said = self._damaged(said)
        return History(
            said,
            {number: each.marker for number, each in enumerate(drawn, 1)},
            {number for number, each in enumerate(drawn, 1) if each.universal},
            self._known_reasoning(said),
            formats,
            whole=self.tame,
        )

    def system(self) -> Drawn:
        content: Any = self.text()
        if self.odds(0.3):
            content = [{"type": "text", "text": content}]
        return self.drawn({"role": self.pick("system", "developer"), "content": content})

    def _known_reasoning(self, said: list[StoredMessage]) -> dict[str, str]:
        """Return which reasoning belongs to which id, as far as transcripts can know it.

        Storage loses nothing from the middle. Where a damage did: nobody can tell an item that must
        have its id from one that never had reasoning, or whose the reasoning right before it is.
        """
        if not self.disturbed:
            return self.reasoning_of
        known = {id: of for id, of in self.reasoning_of.items() if id not in self.hosted}
        turns: dict[str, set[str]] = {}
        speaker = None
        for each in said:
            id = each.message.get("id")
            leading = turns.setdefault(each.turn, set())
            if speaker != (each.author, each.recipient) or each.interrupted:
                speaker = each.author, each.recipient
                leading.clear()
            if each.message.get("type") == "reasoning" and not each.interrupted:
                leading.add(str(id))
            else:
                if leading and known.get(str(id)) not in leading:
                    known.pop(str(id), None)
                leading.clear()
        return known

    def _damaged(self, said: list[StoredMessage]) -> list[StoredMessage]:
        damages = [
            self._cut,
            self._lose,
            self._repeat,
            self._move,
            self._interrupt,
            self._spoil,
            self._assign,
            self._interleave,
        ]
        for _ in range(self.pick(0, 1, 1, 2, 4)):
            if said:
                said = self.pick(*damages)(said)
        return said

    def _interleave(self, said: list[StoredMessage]) -> list[StoredMessage]:
        """Let two workers write at the same time, each in a turn of its own."""
        if any(each.turn for each in said):
            return said
        self.disturbed = self.disturbed or self.cut
        middle = self.pick(*(index for index, safe in enumerate(safe_cuts(said)) if safe))
        halves = [
            [each._replace(turn=turn) for each in half]
            for turn, half in (("t1", said[:middle]), ("t2", said[middle:]))
        ]
        mixed = []
        while halves[0] and halves[1]:
            mixed.append(self.pick(*halves).pop(0))
        return mixed + halves[0] + halves[1]

    def _cut(self, said: list[StoredMessage]) -> list[StoredMessage]:
        self.cut = True
        self.disturbed = self.disturbed or any(each.turn for each in said)
        first = self.draw.randrange(len(said))
        return said[first : self.draw.randint(first, len(said))]

    def _lose(self, said: list[StoredMessage]) -> list[StoredMessage]:
        self.disturbed = True
        lost = self.draw.randrange(len(said))
        return said[:lost] + said[lost + 1 :]

    def _repeat(self, said: list[StoredMessage]) -> list[StoredMessage]:
        again = self.draw.randrange(len(said))
        place = self.draw.randint(again, len(said))
        self.disturbed = True
        return [*said[:place], said[again], *said[place:]]

    def _move(self, said: list[StoredMessage]) -> list[StoredMessage]:
        self.disturbed = True
        left = list(said)
        moved = left.pop(self.draw.randrange(len(left)))
        left.insert(self.draw.randint(0, len(left)), moved)
        return left

    def _interrupt(self, said: list[StoredMessage]) -> list[StoredMessage]:
        self.disturbed = True
        cut = self.draw.randrange(len(said))
        return [*said[:cut], said[cut]._replace(interrupted=True), *said[cut + 1 :]]

    def _assign(self, said: list[StoredMessage]) -> list[StoredMessage]:
        self.disturbed = True
        return [
            each._replace(author=self.pick(*AUTHORS), recipient=self.pick("", "", "", *AUTHORS))
            for each in said
        ]

    def _spoil(self, said: list[StoredMessage]) -> list[StoredMessage]:
        """Change one message as a careless program would."""
        self.disturbed = True
        number = self.draw.randrange(len(said))
        message = dict(said[number].message)
        name = self.pick(*message, "role")
        message.setdefault(name, None)
        match self.draw.randrange(6):
            case 0:
                message["role"] = self.pick(*ROLES, 5, None, ["user"])
            case 1:
                del message[name]
            case 2:
                message[name] = self.pick(None, "", [], {}, 7, [None], [{}], [{"type": []}])
            case 3:
                message["unheard_of"] = {"a": 1}
            case 4 if type(message[name]) is list:
                message[name] = [*message[name], *message[name]]
            case _:
                message[name] = self._gutted(message[name])
        spoiled = said[number]._replace(message=message)
        return [*said[:number], spoiled, *said[number + 1 :]]

    def _gutted(self, value: Any) -> Any:
        """Lose or replace something further inside."""
        if type(value) is dict and value:
            key = self.pick(*value)
            rest = {name: each for name, each in value.items() if name != key}
            return rest if self.odds(0.5) else {**rest, key: self._gutted(value[key])}
        if type(value) is list and value:
            index = self.draw.randrange(len(value))
            inside = [] if self.odds(0.5) else [self._gutted(value[index])]
            return [*value[:index], *inside, *value[index + 1 :]]
        return self.pick(None, "", 0, [], {"type": "text"})


def draw(seed: int, *, tame: bool = False) -> History:
    return Drawing(random.Random(seed), tame=tame).history()
