"""The realistic workload: a support agent for rail and hotel bookings, through turns and tools.

Its sizes follow published statistics of recorded support agents: 3.4 messages and about 1,300 B of
JSON a turn; a user's message has 128 B, an assistant's 324 B and a tool's result 837 B on average.
The texts are written for this benchmark. The same seed gives the same turns.
"""

import json
import random
from collections.abc import Callable
from typing import Any

import perdure
from benchmarks.workload import SEED, Message, Turn

TWO_CALLS, ONE_CALL = 0.14, 0.42  # Shares of turns, so that a turn has 3.4 messages on average.

_NAMES = (
    *("Amelie Hartmann", "Joaquim Reis", "Oksana Petrenko", "Tomasz Wilk", "Ines Carvalho"),
    *("Declan Byrne", "Fatoumata Diallo", "Henrik Solberg", "Maja Novak", "Giulia Ferrante"),
    *("Yusuf Demir", "Chloé Marchand", "Lars Öberg", "Priya Raghavan", "Mateo Aguilar"),
)
_CITIES = (
    *("Lyon", "Turin", "Gdańsk", "Porto", "Ghent", "Zürich", "Bologna", "Malmö", "Leipzig"),
    *("Innsbruck", "Girona", "Utrecht", "Bordeaux", "Trieste", "Kraków", "Salzburg"),
)
_HOTELS = (
    *("Alte Mühle", "Casa do Rio", "Villa Serena", "Hôtel du Marché", "Harbour Lights"),
    *("Zum Goldenen Hirsch", "The Old Tannery", "Quinta das Oliveiras", "Pension Linde"),
)
_ASKED = (
    "Hi, I need to move my trip to {city} from the {day} to the {day}. Is that possible?",
    "Could you check whether the room at {hotel} still has breakfast included?",
    "My booking is {code} and the name on it is {name}. I would like a seat by the window.",
    "Actually, never mind the upgrade. Just tell me what the refund would be if I cancel today.",
    "No, that is wrong, we are two adults and one child, and the child is four years old.",
    "Yes, please go ahead and charge the card ending in {digits}.",
    "What time does the last train leave {city} on a Sunday?",
    "I was told last week that the {euros} euro fee would be waived. Can you confirm that?",
    "We missed the connection in {city} because the first train was late. Who pays for the hotel?",
    "Please send the invoice to my employer instead; the address is on the previous one.",
    "Is there anything cheaper if I travel a day earlier, say on the {day}?",
    "Can I bring a bicycle on that one, or do I have to book a space for it?",
    "My daughter's passport expires in {month}. Does that matter for this route?",
    "That works for me. Could you also add {name} to the reservation?",
    "Okay, thanks. One more thing: where exactly do I pick up the keys at {hotel}?",
    "I would rather have two single beds than one large one, if that does not cost more.",
)
_ANSWERED = (
    "Thank you, {name}. I found your booking {code}, which is confirmed and paid in full.",
    "The change to the {day} is possible without a fee, because your fare is flexible.",
    "The difference is {euros} euros, which I would charge to the card ending in {digits}.",
    "Breakfast at {hotel} is served from half past six and is included in your rate.",
    "Unfortunately the {clock} departure from {city} is sold out in first class.",
    "There are still {few} seats in second class, two of them next to each other.",
    "If you cancel before {clock} on the day before, you get back everything but {euros} euros.",
    "Under the passenger rights rules the railway pays for the night, since the delay was its own.",
    "I have sent the confirmation to the address that we have on file.",
    "Before I make this change, I need you to confirm it explicitly: shall I proceed?",
    "A folding bicycle travels free of charge; any other one needs a space for {euros} euros.",
    "The transfer in {city} takes {minutes} minutes, and both trains stop at the same platform.",
    "For children under six there is no charge as long as they do not occupy a seat of their own.",
    "You can collect the keys from the box left of the entrance; its code is sent that morning.",
    "I cannot waive this fee myself, but I have forwarded your request to a colleague in accounts.",
    "Is there anything else that I can help you with today?",
    "Please note that the room type cannot be guaranteed, although the hotel usually finds a way.",
    "The refund reaches your account within five to seven working days.",
)
_TOOLS = (
    *("find_booking", "search_connections", "quote_change", "apply_change"),
    *("list_rooms", "cancel_item", "contact_partner"),
)


class Fake(dict[str, str]):
    """Values that vary from message to message, by name."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.rng = rng

    def __missing__(self, name: str) -> str:
        return _FAKES[name](self.rng)


_MONTHS = ("March", "May", "June", "August", "October", "December")
_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
_FAKES: dict[str, Callable[[random.Random], str]] = {
    "name": lambda rng: rng.choice(_NAMES),
    "city": lambda rng: rng.choice(_CITIES),
    "hotel": lambda rng: rng.choice(_HOTELS),
    "month": lambda rng: rng.choice(_MONTHS),
    "day": lambda rng: f"{rng.randint(1, 28)} {rng.choice(_MONTHS)}",
    "code": lambda rng: "".join(rng.choices(_LETTERS, k=6)),
    "digits": lambda rng: f"{rng.randrange(10_000):04}",
    "euros": lambda rng: f"{rng.randint(400, 39_900) / 100:.2f}",
    "clock": lambda rng: f"{rng.randrange(5, 23):02}:{rng.randrange(60):02}",
    "minutes": lambda rng: str(rng.randint(6, 55)),
    "few": lambda rng: str(rng.randint(2, 9)),
}


def conversations(count: int, *, seed: int = SEED) -> list[Turn]:
    """Return turns for a session that goes on."""
    fake = Fake(random.Random(seed))
    return [_turn(fake) for _ in range(count)]


def store_conversation(session: "perdure.Session", turns: list[Turn]) -> None:
    """Store turns as an agent does: begin, append the model's messages, run the tools, complete."""
    results: dict[str, str] = {}

    def tool_named(name: str) -> Any:
        def tool(**arguments: Any) -> str:
            return results[json.dumps(arguments)]

        tool.__name__ = name
        return session.tool(tool)

    tools = [tool_named(name) for name in _TOOLS]
    for question, *rest in turns:
        with session.turn(question) as turn:
            for message in rest:
                if message["role"] == "tool":
                    continue
                turn.append(message)
                for call in message.get("tool_calls", ()):
                    arguments = json.dumps(json.loads(call["function"]["arguments"]))
                    results[arguments] = _result_of(call["id"], rest)
                if message.get("tool_calls"):
                    session.run_tool_calls(message, tools)


def _result_of(call: str, messages: Turn) -> str:
    return str(next(item["content"] for item in messages if item.get("tool_call_id") == call))


def _turn(fake: Fake) -> Turn:
    turn: Turn = [{"role": "user", "content": _say(fake, _ASKED, 92)}]
    draw = fake.rng.random()
    for _ in range(2 if draw < TWO_CALLS else draw < TWO_CALLS + ONE_CALL):
        turn += _call(fake)
    turn.append({"role": "assistant", "content": _say(fake, _ANSWERED, 358)})
    return turn


def _say(fake: Fake, sentences: tuple[str, ...], size: int) -> str:
    """Return some different sentences of roughly this length together."""
    wanted = size * fake.rng.uniform(0.35, 1.65)
    said: list[str] = []
    for sentence in fake.rng.sample(sentences, len(sentences)):
        if said and sum(map(len, said)) + len(sentence) / 2 > wanted:
            break
        said.append(sentence.format_map(fake))
    return " ".join(said)


def _call(fake: Fake) -> Turn:
    call = "call_" + "".join(fake.rng.choices("ABCDEFabcdefghijkLMNOPqrstUVWxyz0123456789", k=24))
    arguments = {"booking": fake["code"], "date": _date(fake), "passengers": fake["few"]}
    function = {"name": fake.rng.choice(_TOOLS), "arguments": json.dumps(arguments)}
    made = {"id": call, "type": "function", "function": function}
    return [
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": call, "content": json.dumps(_result(fake))},
    ]


def _result(fake: Fake) -> Message:
    """Return a record of a booking system, of the length that such records have."""
    rng = fake.rng
    return {
        "booking": fake["code"],
        "status": rng.choice(("confirmed", "pending payment", "changed", "cancelled")),
        "traveller": {"name": fake["name"], "born": _date(fake), "loyalty": rng.getrandbits(30)},
        "journey": _legs(fake, rng.choices((1, 2, 3), (3, 4, 2))[0]),
        "rooms": [_room(fake)] if rng.random() < 0.5 else [],
        "total": {"currency": "EUR", "amount": float(fake["euros"])},
        "paid_by": {"card": f"**** {fake['digits']}", "expires": f"{rng.randint(1, 12):02}/29"},
    }


def _legs(fake: Fake, count: int) -> list[Message]:
    """Return trains of one day, each from where the one before it ended."""
    day, stations = _date(fake), fake.rng.sample(_CITIES, count + 1)
    return [
        {
            "from": {"station": stations[number], "time": f"{day}T{fake['clock']}"},
            "to": {"station": stations[number + 1], "time": f"{day}T{fake['clock']}"},
            "train": f"{fake.rng.choice(('IC', 'EC', 'TGV', 'RJ'))} {fake.rng.randint(9, 999)}",
            "class": 2,
            "seats": [f"{fake.rng.randint(1, 14)}-{fake.rng.randint(11, 88)}"],
            "price": float(fake["euros"]),
        }
        for number in range(count)
    ]


def _room(fake: Fake) -> Message:
    return {
        "hotel": fake["hotel"],
        "check_in": _date(fake),
        "nights": fake.rng.randint(1, 7),
        "beds": fake.rng.choice(("double", "twin", "single")),
        "breakfast": fake.rng.random() < 0.7,
        "price": float(fake["euros"]),
    }


def _date(fake: Fake) -> str:
    return f"2026-{fake.rng.randint(1, 12):02}-{fake.rng.randint(1, 28):02}"
