"""Tools of a row in the field's own format: their schemas, the assistant's calls of them, and every text in these."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from p2prl.errors import ConfigError

TOOLS = "tools"
"""Column of a row's tools, as TRL and transformers name it."""

Tool = dict[str, Any]
"""A JSON schema of a function: `{"type": "function", "function": {"name": …, "parameters": …}}`, or the inner part."""


def tools_of(value: object) -> tuple[Tool, ...]:
    """The tools in a row's column, which may also hold them as JSON text; none where it holds something else."""
    value = _parsed(value)
    if not isinstance(value, list) or not value or not all(tool_name(tool) for tool in value):
        return ()
    return tuple(value)


def tool_name(tool: object) -> str:
    """Name of a tool's function; empty for what is no tool."""
    inner = tool.get("function", tool) if isinstance(tool, Mapping) else None
    name = inner.get("name") if isinstance(inner, Mapping) else None
    return name if isinstance(name, str) else ""


def checked_calls(value: object, *, place: str) -> list[dict[str, Any]]:
    """The calls in an assistant's message, with their arguments as objects. `ConfigError` for others."""
    calls = value if isinstance(value, list) else []
    checked = [_checked_call(call) for call in calls]
    if not checked or not all(checked):
        raise ConfigError(
            f"{place}: `tool_calls` is no list of calls of functions",
            remedy='Write each as {"type": "function", "function": {"name": "…", "arguments": {…}}}.',
        )
    return [call for call in checked if call is not None]


def _checked_call(call: object) -> dict[str, Any] | None:
    if not isinstance(call, dict) or not (name := tool_name(call)):
        return None
    inner = call.get("function", call)
    arguments = _parsed(inner.get("arguments") or {})
    if not isinstance(arguments, dict):
        return None
    named = {"id": call["id"]} if isinstance(call.get("id"), str) else {}
    return {**named, "type": "function", "function": {"name": name, "arguments": arguments}}


def with_text_arguments(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose calls have their arguments as JSON text, which some templates expect."""
    if "tool_calls" not in message:
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": _json(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def names_called(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the functions that messages call."""
    return [tool_name(call) for message in messages for call in message.get("tool_calls", ())]


def texts_in(value: object) -> Iterator[str]:
    """Every text in a JSON value, the names of its fields among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield name
            yield from texts_in(inner)
    elif isinstance(value, Sequence):
        for inner in value:
            yield from texts_in(inner)


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON value with each of its texts changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(name): with_texts(inner, change) for name, inner in value.items()}
    return [with_texts(inner, change) for inner in value] if isinstance(value, list | tuple) else value


def _parsed(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
