"""Functions as tools for a model: the schema of their parameters, and values in their types."""

import asyncio
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest

from perdure.errors import UsageError
from perdure.formats.schemas import describe_tool, with_types


@dataclass
class Order:
    """An order."""

    number: int
    note: str = ""


class Item(pydantic.BaseModel):
    """Part of a basket."""

    name: str


class Basket(pydantic.BaseModel):
    """A model that refers to another one."""

    items: list[Item]


def look_up(
    order: Order,
    day: date,
    limit: Annotated[int, msgspec.Meta(ge=1, description="how many")] = 3,
    kind: Literal["new", "old"] = "new",
    free: Any = None,
) -> Any:
    """Look up orders.

    Of one day.
    """
    return order, day, limit, kind, free


def test_a_schema_has_the_types_defaults_and_definitions() -> None:
    tool = describe_tool(look_up, "look_up")
    assert (tool.name, tool.description) == ("look_up", "Look up orders.\n\nOf one day.")
    order = {"number": {"type": "integer"}, "note": {"type": "string", "default": ""}}
    assert tool.parameters == {
        "type": "object",
        "properties": {
            "order": {"$ref": "#/$defs/Order"},
            "day": {"type": "string", "format": "date"},
            "limit": {"type": "integer", "minimum": 1, "description": "how many", "default": 3},
            "kind": {"enum": ["new", "old"], "default": "new"},
            "free": {},
        },
        "required": ["order", "day"],
        "$defs": {
            "Order": {
                "title": "Order",
                "description": "An order.",
                "type": "object",
                "properties": order,
                "required": ["number"],
            }
        },
    }


def test_models_of_pydantic_bring_their_definitions() -> None:
    def buy(basket: Basket) -> str:
        return basket.items[0].name

    schema = describe_tool(buy, "buy").parameters
    assert schema["properties"]["basket"]["properties"]["items"]["items"] == {
        "$ref": "#/$defs/Item"
    }
    assert schema["$defs"]["Item"]["required"] == ["name"]
    assert with_types(buy, "buy")(basket={"items": [{"name": "tea"}]}) == "tea"
    with pytest.raises(msgspec.ValidationError, match="the argument 'basket' is invalid"):
        with_types(buy, "buy")(basket={"items": [{}]})


def test_values_are_passed_in_the_types_of_their_parameters() -> None:
    call = with_types(look_up, "look_up")
    made = call(order={"number": 7}, day="2026-11-18", free=[1])
    assert made == (Order(7), date(2026, 11, 18), 3, "new", [1])
    with pytest.raises(msgspec.ValidationError, match="the argument 'day' is invalid"):
        call(order={"number": 7}, day="soon")
    with pytest.raises(TypeError, match="day"):
        call(order={"number": 7})


def test_async_functions_partials_and_objects_are_tools_too() -> None:
    async def wait(seconds: float) -> float:
        return seconds

    assert asyncio.run(with_types(wait, "wait")(seconds=2)) == 2.0
    assert "order" not in describe_tool(partial(wait, 1.0), "wait").parameters["required"]
    with pytest.raises(UsageError, match="has no keyword"):
        describe_tool(lambda *rest: rest, "many")


@pytest.mark.parametrize("annotation", [object(), complex, "Unknown"])
def test_a_type_without_a_schema_is_refused(annotation: Any) -> None:
    def tool(value: Any) -> None:
        del value

    tool.__annotations__["value"] = annotation
    with pytest.raises(UsageError, match="the tool 'tool'"):
        describe_tool(tool, "tool")
