"""Prompts of a data set as texts: the model's chat template around them, evaluated when a run is made and never again.

A template is a program. Only the machine that makes a run evaluates it, on a model its owner chose; the run ships token
ids and, for procedural tasks, the two texts that stand around a prompt.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from p2prl.errors import ConfigError, RemoteProtocolError
from p2prl.models.tokenizer.control_text import ControlEncoding
from p2prl.models.tokenizer.text_codec import library_panics
from p2prl.protocol import limits
from p2prl.tasks.data.prompts import CUT, Message, Prompt
from p2prl.tasks.data.tool_messages import Tool, names_called, texts_in, tool_name, with_text_arguments, with_texts

_DATE = datetime.date(2024, 7, 26)
"""Date that templates get for today's, as Llama's do without a clock: the same data must give the same prompts."""

_SENTINELS = ("p2prl-prompt-4f1c", "p2prl-prompt-with-another-length-93ab")
"""Texts in the place of a prompt. Two, because a template may treat long and short messages differently."""


class PromptRenderer:
    """Renders and encodes the prompts of one model's run."""

    def __init__(
        self, tokenizer: Any, *, template: str | None, system: str = "", keeps_control_tokens: bool = False
    ) -> None:
        """`template` is a chat template, None for none; `system` stands before every prompt.

        `keeps_control_tokens` leaves those that a prompt has in its own text: it was rendered before.
        `ConfigError` when the template cannot be used.
        """
        self._tokenizer = tokenizer
        self._template = template
        self._system: list[Message] = [{"role": "system", "content": system}] if system else []
        if system and template is None:
            raise ConfigError(
                "--system needs a chat template, and the model has none",
                remedy="Give one: --chat-template FILE; or leave out --system.",
            )
        if template is not None:
            self._check_template(system)
        self._encoding = None if keeps_control_tokens else ControlEncoding(tokenizer, written=self._written())

    @property
    def unknown_id(self) -> int | None:
        """Token of unknown texts; None when the tokenizer has none."""
        token: int | None = self._tokenizer.unk_token_id
        return token

    def render(self, prompt: Prompt, tools: Sequence[Tool] = ()) -> str:
        """The text whose tokens are the prompt, with a `CUT` before each control token of the prompt's own text.

        `ConfigError` when the template refuses the prompt, rewrites its control tokens, leaves out `tools` or their
        calls, or there is none.
        """
        rendered = self._rendered(prompt, tools)
        texts = [*_texts(prompt), *texts_in(tools)]
        if self._encoding is None or not (found := self._encoding.control.found(texts)):
            return rendered
        if lone := self._encoding.control.lone(texts):
            raise ConfigError(
                f"the prompt has the control token {lone} in its text: of one character, it cannot be read as text",
                remedy="Remove it from the row.",
            )
        guard = self._encoding.control.guarded
        guarded = self._rendered(_guarded(prompt, guard), with_texts(tools, guard))
        if guarded.replace(CUT, "") != rendered:
            raise ConfigError(
                f"the prompt has the control token {found} in its text, which the chat template rewrites",
                remedy="Remove it from the row.",
            )
        return guarded

    def _rendered(self, prompt: Prompt, tools: Sequence[Tool]) -> str:
        if self._template is None:
            if tools:
                raise ConfigError(
                    "the row has tools, which a chat template writes, and the model has none",
                    remedy="Give one: --chat-template FILE; or leave out the column `tools`.",
                )
            return _plain(prompt)
        rendered = self._applied(prompt, tools, answered=False)
        for what, names in (("tools", map(tool_name, tools)), ("calls of tools", _called(prompt))):
            if lost := next((name for name in names if name not in rendered), ""):
                raise ConfigError(
                    f"the chat template leaves out the row's {what}, such as {lost[:80]!r}",
                    remedy="Give another template: --chat-template FILE; or leave them out of the rows.",
                )
        return rendered

    def _written(self) -> str:
        """What the template writes for a prompt and, where it can, for a conversation; empty without a template."""
        if self._template is None:
            return ""
        written = self._applied(_SENTINELS[0], answered=False)
        with suppress(ConfigError):
            written += self._applied(_conversation(_SENTINELS[0]), answered=False)
        with suppress(ConfigError):
            written += self._applied(_tool_conversation(_SENTINELS[0]), [_TOOL], answered=False)
        return written

    def _check_template(self, system: str) -> None:
        """`ConfigError` unless the template writes the prompt, and the system prompt if there is one."""
        written = _words(self._applied(_SENTINELS[0], answered=False))
        if _SENTINELS[0] not in written:
            raise ConfigError(
                "the chat template leaves the prompt out, so that all prompts would be one",
                remedy="Give another template: --chat-template FILE, or off.",
            )
        if _words(system) not in written:
            raise ConfigError(
                "the chat template leaves out or rewrites the system prompt",
                remedy="Leave out --system and put its text into the prompts; or give another: --chat-template FILE.",
            )

    def ending(self) -> int | None:
        """The first special token that the template writes after an answer: what the model's turn ends with.

        None when it writes none, there is no template, or it cannot write a conversation.
        """
        if self._template is None:
            return None
        answer = f"{_SENTINELS[0]}-answer"
        messages: list[Message] = [
            {"role": "user", "content": _SENTINELS[0]},
            {"role": "assistant", "content": answer},
        ]
        try:
            text = self._applied(messages, answered=True)
        except ConfigError:
            return None
        _, found, rest = text.rpartition(answer)
        added = self._tokenizer.added_tokens_decoder.items()
        special = {*self._tokenizer.all_special_ids, *(token for token, entry in added if entry.special)}
        (token_ids,) = self.encode_all([rest if found else ""])
        return next((token for token in token_ids if token in special), None)

    def _applied(self, prompt: Prompt, tools: Sequence[Tool] = (), *, answered: bool) -> str:
        """What the template writes for messages, of which `answered` says that the last one is the assistant's.

        Templates take the arguments of calls as objects, or as JSON texts as DeepSeek's do: whichever is written as
        JSON.
        """
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        if self._system and messages[0]["role"] == "system":
            raise ConfigError(
                "the prompt has a system message of its own, and --system gives another", remedy="Leave out --system."
            )
        messages = [*self._system, *messages]
        if any("tool_calls" in message for message in messages) and self._takes_texts:
            messages = [with_text_arguments(message) for message in messages]
        return self._filled(messages, tools, answered=answered)

    @cached_property
    def _takes_texts(self) -> bool:
        """Whether the template writes arguments of calls as JSON only if they are texts, by a call of its own."""
        try:
            text = self._filled(_tool_conversation(_SENTINELS[0]), [_TOOL], answered=False)
        except ConfigError:
            return True
        return str(_ARGUMENTS) in text

    def _filled(self, messages: Sequence[Message], tools: Sequence[Tool], *, answered: bool) -> str:
        try:
            text: str = self._tokenizer.apply_chat_template(
                list(messages),
                tools=list(tools) or None,
                chat_template=self._template,
                tokenize=False,
                add_generation_prompt=not answered,
                strftime_now=_DATE.strftime,
            )
        except Exception as error:  # a template is a program, which may raise anything
            raise ConfigError(
                f"the chat template refuses the prompt: {str(error)[:200] or type(error).__name__}",
                remedy=("Leave out --system if it is that; or give" if self._system else "Give")
                + " another template: --chat-template FILE, or off.",
            ) from error
        return text

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokens of rendered texts. No control token is read after a `CUT`.

        A template writes its special tokens itself, so that none is doubled.
        """
        special = self._template is None
        held = [self._encoding is not None and CUT in text for text in texts]
        whole = [text for text, has in zip(texts, held, strict=True) if not has]
        cut = [text for text, has in zip(texts, held, strict=True) if has]
        try:
            with library_panics():
                plain = self._tokenizer(whole, add_special_tokens=special)["input_ids"] if whole else []
                guarded: list[list[int]] = []
                if self._encoding is not None:
                    unguarded = [self._encoding.control.unguarded(text) for text in cut]
                    guarded = self._encoding.encode(unguarded, special=special)
        except RemoteProtocolError as error:
            raise ConfigError(str(error), remedy="Choose another model.") from error
        rows = iter(plain), iter(guarded)
        return [list(next(rows[has])) for has in held]

    def frame(self) -> tuple[str, str]:
        """Texts before and after the prompt of one user message. Both empty if there is no template, or it rewrites
        the message."""
        if self._template is None:
            return "", ""
        first, second = (self.render(sentinel).split(sentinel) for sentinel in _SENTINELS)
        if first != second or len(first) != 2:
            return "", ""
        return _checked_frame(*first)

    def turn_frame(self, stops: Iterable[str]) -> tuple[str, str]:
        """Texts before and after a user message that answers the model. Both empty as those of `frame` are.

        `stops` are the texts of the stop tokens. The model ends its turn with one itself: what the template writes for
        it is left out.
        """
        if self._template is None:
            return "", ""
        first, second = map(self._around_answer, _SENTINELS)
        if first != second or first is None:
            return "", ""
        before, after = first
        ending = next((stop for stop in sorted(stops, key=len, reverse=True) if stop and before.startswith(stop)), "")
        return _checked_frame(before.removeprefix(ending), after)

    def _around_answer(self, sentinel: str) -> tuple[str, str] | None:
        """What the template writes from the end of an answer to the next user message, and after that one."""
        messages = _conversation(sentinel)
        _, answer, reply = (message["content"] for message in messages)
        parts = self.render(messages).split(answer)
        around = parts[-1].split(reply)
        return (around[0], around[1]) if len(parts) == len(around) == 2 else None


def _conversation(sentinel: str) -> list[Message]:
    """A question, its answer, and the next message of the user."""
    turns = (("user", "question"), ("assistant", "answer"), ("user", "reply"))
    return [{"role": role, "content": f"{sentinel}-{part}"} for role, part in turns]


def _guarded(prompt: Prompt, guard: Callable[[str], str]) -> Prompt:
    if isinstance(prompt, str):
        return guard(prompt)
    return [{name: each if name == "role" else with_texts(each, guard) for name, each in m.items()} for m in prompt]


def _texts(prompt: Prompt) -> Iterable[str]:
    if isinstance(prompt, str):
        return [prompt]
    return (text for m in prompt for name, each in m.items() if name != "role" for text in texts_in(each))


_TOOL: Tool = {
    "type": "function",
    "function": {"name": "look_up", "description": "Looks up.", "parameters": {"type": "object", "properties": {}}},
}


_ARGUMENTS = {"word": "p2prl"}
"""Of a call of it; Python writes them otherwise than JSON."""


def _tool_conversation(sentinel: str) -> list[Message]:
    """A question, a call of `_TOOL`, and what it answers."""
    call = {"id": "123456789", "type": "function", "function": {"name": "look_up", "arguments": _ARGUMENTS}}
    return [
        {"role": "user", "content": f"{sentinel}-question"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": f"{sentinel}-found", "tool_call_id": call["id"], "name": "look_up"},
    ]


def _called(prompt: Prompt) -> list[str]:
    return [] if isinstance(prompt, str) else names_called(prompt)


def _words(text: str) -> str:
    """A text without case and white space, which templates may change."""
    return " ".join(text.lower().split())


def _checked_frame(before: str, after: str) -> tuple[str, str]:
    """The texts, unless a manifest may not hold them."""
    longest = max(len(before), len(after))
    if longest > limits.MAX_TEXT_CHARS:
        raise ConfigError(
            f"the chat template puts {longest:,} characters around a prompt, more than {limits.MAX_TEXT_CHARS:,}",
            remedy="Use a shorter --system, or --chat-template off.",
        )
    return before, after


def chat_template(tokenizer: Any, choice: str) -> str | None:
    """The template of a choice: empty for the tokenizer's own if it has one, `on`, `off`, or a template's text.

    `ConfigError` when `on` is chosen and there is none.
    """
    if choice == "off":
        return None
    if choice not in ("", "on"):
        return choice
    try:
        own: str | None = tokenizer.get_chat_template() if tokenizer.chat_template else None
    except ValueError as error:  # several templates, none of them the default
        raise ConfigError(
            f"the model's chat template cannot be chosen: {str(error)[:200]}", remedy="Give one: --chat-template FILE."
        ) from error
    if own is None and choice == "on":
        raise ConfigError("the model has no chat template", remedy="Give one: --chat-template FILE; or off.")
    return own


def _plain(prompt: Prompt) -> str:
    """A prompt without a template: its text, or that of its only message."""
    if isinstance(prompt, str):
        return prompt
    if len(prompt) == 1:
        return str(prompt[0]["content"])
    raise ConfigError(
        f"a prompt of {len(prompt)} messages needs a chat template, and the model has none",
        remedy="Give one: --chat-template FILE.",
    )
