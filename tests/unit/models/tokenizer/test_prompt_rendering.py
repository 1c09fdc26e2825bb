"""Chat templates: evaluated as transformers does, no special token doubled, the same on every day."""

from __future__ import annotations

from typing import Any

import pytest

from p2prl.errors import ConfigError
from p2prl.models.small_models.tiny_models import BOS
from p2prl.models.tokenizer.prompt_rendering import PromptRenderer, chat_template
from p2prl.tasks.data.prompts import Message
from tests.unit.models.chat_tokenizer import RENDERED, TEMPLATE, chat_tokenizer

USER = {"role": "user", "content": "Hello"}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return chat_tokenizer()


def test_prompts_have_the_tokens_that_transformers_gives(tokenizer: Any) -> None:
    renderer = PromptRenderer(tokenizer, template=TEMPLATE)
    messages = [{"role": "system", "content": "Be good"}, USER, {"role": "assistant", "content": "?"}, USER]
    for prompt in ("Hello", [USER], messages):
        (token_ids,) = renderer.encode_all([renderer.render(prompt)])
        asked = [USER] if isinstance(prompt, str) else prompt
        expected = tokenizer.apply_chat_template(asked, tokenize=True, add_generation_prompt=True, return_dict=False)
        assert token_ids == expected
        assert token_ids.count(tokenizer.bos_token_id) == 1
    assert renderer.render("Hello") == RENDERED


def test_without_a_template_texts_are_prompts(tokenizer: Any) -> None:
    renderer = PromptRenderer(tokenizer, template=None)
    assert renderer.render("Hello") == renderer.render([USER]) == "Hello"
    assert renderer.encode_all(["Hello"]) == [list(tokenizer.encode("Hello"))]
    assert renderer.encode_all(["Hello"])[0][0] == tokenizer.bos_token_id
    assert renderer.frame() == ("", "")
    with pytest.raises(ConfigError, match="2 messages needs a chat template") as caught:
        renderer.render([USER, USER])
    assert "--chat-template" in caught.value.remedy


def test_the_frame_stands_around_any_prompt(tokenizer: Any) -> None:
    for system in ("", "Count."):
        renderer = PromptRenderer(tokenizer, template=TEMPLATE, system=system)
        before, after = renderer.frame()
        assert before.endswith("[user]")
        for prompt in ("3+4=", "Why?\nBecause", "{{ 7 }}"):
            assert before + prompt + after == renderer.render(prompt)


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0]['content'] | upper }}",
        "{{ messages[0]['content'] }} {{ messages[0]['content'] }}",
        "{{ messages[0]['content'] | length }}{{ messages[0]['content'] }}",
    ],
)
def test_templates_that_rewrite_the_message_have_no_frame(tokenizer: Any, template: str) -> None:
    assert PromptRenderer(tokenizer, template=template).frame() == ("", "")


CHATML = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<e>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Ends every message with the stop token."""


@pytest.mark.parametrize("template", [TEMPLATE, CHATML])
def test_turns_are_framed_as_the_template_writes_a_conversation(tokenizer: Any, template: str) -> None:
    """Prompt, answers with their stop tokens and framed messages are the text of the whole conversation."""
    renderer = PromptRenderer(tokenizer, template=template, system="Count.")
    before, after = renderer.turn_frame(["<e>", "<other>"])
    ending = "<e>" if template == CHATML else ""
    conversation = [("7+7=", "14"), ("lower", "12"), ("higher", "")]
    text = ""
    messages: list[Message] = []
    for number, (said, answer) in enumerate(conversation):
        messages.append({"role": "user", "content": said})
        expected = renderer.render(messages)
        text = renderer.render("7+7=") if number == 0 else text + before + said + after
        assert text == expected
        messages.append({"role": "assistant", "content": answer})
        text += answer + ending  # the model samples the stop token itself
    assert PromptRenderer(tokenizer, template=None).turn_frame(["<e>"]) == ("", "")


@pytest.mark.parametrize(
    "template",
    ["{{ messages[-1]['content'] }}", "{{ messages[0]['content'] }}{{ messages | length }}"],
)
def test_templates_that_rewrite_a_conversation_frame_no_turns(tokenizer: Any, template: str) -> None:
    assert PromptRenderer(tokenizer, template=template).turn_frame(["<e>"]) == ("", "")


def test_a_frame_that_volunteers_would_refuse_is_refused(tokenizer: Any) -> None:
    around = len(f"{BOS}[system]\n[user]")
    assert len(PromptRenderer(tokenizer, template=TEMPLATE, system="x" * (2000 - around)).frame()[0]) == 2000
    with pytest.raises(ConfigError, match="2,001 characters around a prompt, more than 2,000"):
        PromptRenderer(tokenizer, template=TEMPLATE, system="x" * (2001 - around)).frame()


def test_a_template_finds_the_same_date_every_day(tokenizer: Any) -> None:
    """Llama's templates print today's date where there is a clock."""
    dated = "{{ strftime_now('%d %b %Y') if strftime_now is defined }}: " + TEMPLATE
    assert PromptRenderer(tokenizer, template=dated).render("Hello") == f"26 Jul 2024: {RENDERED}"


def test_the_system_prompt_comes_first_and_once(tokenizer: Any) -> None:
    renderer = PromptRenderer(tokenizer, template=TEMPLATE, system="Be brief.")
    assert renderer.render("Hello") == f"{BOS}[system]Be brief.\n[user]Hello\n[assistant]"
    with pytest.raises(ConfigError, match="a system message of its own"):
        renderer.render([{"role": "system", "content": "No"}, USER])
    with pytest.raises(ConfigError, match="--system needs a chat template"):
        PromptRenderer(tokenizer, template=None, system="Be brief.")


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}",
        "{{ raise_exception('no system role') }}",
        "{{ messages[7].content.x }}",
        "{{ 1 / 0 }}",
        "{% for i in range(10 ** 12) %}{% endfor %}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    ],
)
def test_a_template_that_fails_is_refused_before_any_row(tokenizer: Any, template: str) -> None:
    with pytest.raises(ConfigError, match="the chat template refuses the prompt") as caught:
        PromptRenderer(tokenizer, template=template)
    assert caught.value.remedy


def test_a_template_cannot_leave_its_sandbox(tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match="refuses"):
        PromptRenderer(tokenizer, template="{{ ''.__class__.__mro__[1].__subclasses__() }}")


def test_the_template_is_the_models_own_unless_another_is_chosen(tokenizer: Any) -> None:
    bare = chat_tokenizer(None)
    assert chat_template(tokenizer, "") == chat_template(tokenizer, "on") == TEMPLATE
    assert chat_template(tokenizer, "off") is chat_template(bare, "") is chat_template(bare, "off") is None
    assert chat_template(tokenizer, "{{ x }}") == chat_template(bare, "{{ x }}") == "{{ x }}"
    with pytest.raises(ConfigError, match="no chat template") as caught:
        chat_template(bare, "on")
    assert "--chat-template" in caught.value.remedy


@pytest.mark.parametrize(
    ("template", "system", "said"),
    [
        ("nothing", "", "leaves the prompt out"),
        ("{{ messages[0]['content'] }}", "Be brief.", "leaves the prompt out"),
        ("{{ messages[-1]['content'] }}", "Be brief.", "leaves out or rewrites the system prompt"),
        ("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}", "Be brief.", "the system prompt"),
    ],
)
def test_a_template_that_leaves_out_what_was_asked_is_refused(
    tokenizer: Any, template: str, system: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        PromptRenderer(tokenizer, template=template, system=system)
    assert "--chat-template FILE" in caught.value.remedy


def test_a_template_may_trim_the_system_prompt(tokenizer: Any) -> None:
    template = "{% for m in messages %}{{ m.content | trim }}\n{% endfor %}"
    assert (
        PromptRenderer(tokenizer, template=template, system=" Be\nbrief. \n").render("Hello") == "Be\nbrief.\nHello\n"
    )


@pytest.mark.parametrize(
    ("template", "ending"),
    [
        ("{% for m in messages %}{{ m.content }}{{ eos_token }}{{ bos_token }}{% endfor %}", "eos_token_id"),
        ("{% for m in messages %}{{ m.content }}.{{ bos_token }}{{ eos_token }}{% endfor %}", "bos_token_id"),
        ("{% for m in messages %}{{ bos_token }}{{ m.content }}{% endfor %}", ""),
        ("{{ messages[0].content }}{{ eos_token }}", ""),
        ("{{ messages[0].content if messages | length == 1 else raise_exception('no') }}{{ eos_token }}", ""),
        (TEMPLATE, ""),
    ],
)
def test_a_turn_ends_with_the_first_special_token_after_the_answer(tokenizer: Any, template: str, ending: str) -> None:
    expected = getattr(tokenizer, ending) if ending else None
    assert PromptRenderer(tokenizer, template=template).ending() == expected
    assert PromptRenderer(tokenizer, template=None).ending() is None
