"""Prompt of a row: a text, or chat messages that the assistant is to answer. Checks, and texts to compare them by."""

from __future__ import annotations

import json
import re
from typing import Any

from p2prl.errors import ConfigError
from p2prl.tasks.data.tool_messages import checked_calls

Message = dict[str, Any]
"""`role` and `content`, a text; of an assistant also `tool_calls`, of a tool `tool_call_id` and `name`."""

Prompt = str | list[Message]

CUT = "\ufdd0p2prl-cut\ufdd1"
"""Stands in a rendered text before what looks like a control token and is none. Not in any data: the first and the last
sign are no characters."""

ROLES = ("system", "developer", "user", "assistant", "tool")


_FURTHER = {"assistant": frozenset({"tool_calls"}), "tool": frozenset({"tool_call_id", "name"})}
"""What a message may have besides, by its role."""

_MESSAGES_AS_TEXT = re.compile(r"\s*\[\s*\{\s*[\"'](?:role|content)[\"']\s*:")


def checked_prompt(value: object, *, place: str, column: str) -> Prompt:
    """The prompt in a row's column. `ConfigError` naming the place when it is empty, or no prompt."""
    if isinstance(value, str):
        if not value.strip():
            raise ConfigError(f"{place}: the prompt is empty", remedy="Remove the row, or give it a prompt.")
        if _MESSAGES_AS_TEXT.match(value):
            raise ConfigError(
                f"{place}: the messages are written as text", remedy="Write them as a list, without quotes around it."
            )
        return value
    if not isinstance(value, list):
        if value is None:
            raise ConfigError(
                f"{place}: the prompt in {column!r} is missing or null",
                remedy="Remove the row, or give it a prompt; --prompt-column COLUMN names another column.",
            )
        kind = f"{kind_of(value)}, not a text or a list of messages"
        raise ConfigError(
            f"{place}: the prompt in {column!r} is {kind}",
            remedy="Write it as a text, in quotes; if the prompts are elsewhere: --prompt-column COLUMN.",
        )
    if not value:
        raise ConfigError(f"{place}: the prompt has no messages", remedy="Remove the row, or give it a message.")
    messages = [_checked_message(message, place) for message in value]
    last = messages[-1]["role"]
    if last == "assistant":
        raise ConfigError(
            f"{place}: the last message is the assistant's, which the run is to sample",
            remedy="Remove it from the messages; if it is the right answer, put it into a column `answer`.",
        )
    if last == "tool" and not any("tool_calls" in message for message in messages):
        raise ConfigError(
            f"{place}: a tool answers in the last message, and none was called",
            remedy="Put the call before it: an assistant's message with `tool_calls`.",
        )
    if last not in ("user", "tool"):
        raise ConfigError(f"{place}: the last message is not the user's but has the role {last}", remedy="Reorder it.")
    if last == "user" and not messages[-1]["content"].strip():
        raise ConfigError(f"{place}: the user's last message is empty", remedy="Remove the row, or give it a prompt.")
    return messages


def _checked_message(message: object, place: str) -> Message:
    present = {key: value for key, value in message.items() if value is not None} if isinstance(message, dict) else {}
    role = present.get("role")
    if "tool_calls" in present and role == "assistant":
        present = {"content": "", **present, "tool_calls": checked_calls(present["tool_calls"], place=place)}
    content = _joined_text(present.get("content"))
    further = present.keys() - {"role", "content"}
    if further - _FURTHER.get(str(role), frozenset()) or not isinstance(content, str):
        raise ConfigError(
            f"{place}: a message is not {{role, content}} with a text as its content",
            remedy='Write messages as [{"role": "user", "content": "…"}], and calls of tools in the `tool_calls` of an '
            "assistant's; images do not work.",
        )
    if role not in ROLES:
        raise ConfigError(
            f"{place}: a message has the role {str(role)[:40]!r}", remedy=f"Roles are {', '.join(ROLES)}."
        )
    for name in further - {"tool_calls"}:
        if not isinstance(present[name], str):
            raise ConfigError(
                f"{place}: `{name}` of a message is {kind_of(present[name])}", remedy="Write it as a text."
            )
    return {"role": role, "content": content, **{name: present[name] for name in sorted(further)}}


def _joined_text(content: object) -> object:
    """A content of text parts as one text, as chat templates write it; any other content as it is."""
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.keys() == {"type", "text"}]
    is_text = bool(texts) and len(texts) == len(parts) and all(part["type"] == "text" for part in parts)
    return "".join(map(str, texts)) if is_text and all(isinstance(text, str) for text in texts) else content


def kind_of(value: object) -> str:
    """Kind of a JSON value, for a message. Whole and decimal numbers are one kind."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a text"
    return "a list" if isinstance(value, list) else "an object"


def normal_text(prompt: Prompt) -> bytes:
    """A prompt without case and white space, but with its lines: equal for prompts that ask the same.

    System messages count: some data has its problems in them. Only ASCII letters lose their case: the tables of other
    scripts differ between versions of Python.
    """
    texts = [prompt] if isinstance(prompt, str) else [_compared(message) for message in prompt]
    lines = "\n".join(texts).encode().lower().strip().splitlines()
    return b"\n".join(b" ".join(line.split()) for line in lines)


def _compared(message: Message) -> str:
    calls = message.get("tool_calls")
    return str(message["content"]) + (f" {json.dumps(calls, sort_keys=True)}" if calls else "")
