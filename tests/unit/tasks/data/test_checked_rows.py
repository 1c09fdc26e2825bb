"""Rows: columns by their usual names or the user's, and one clear sentence for each that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from p2prl.errors import ConfigError
from p2prl.tasks.data.checked_rows import CheckedRow, CheckedRows
from p2prl.tasks.data.columns import ANSWER_NAMES, PROMPT_NAMES
from p2prl.tasks.data.data_plan import DataPlan
from p2prl.tasks.data.data_source import open_source
from p2prl.tasks.data.prompt_template import PromptTemplate
from p2prl.tasks.data.prompts import Prompt, checked_prompt, normal_text
from tests.unit.tasks.data.packing_rig import write_rows

USER = {"role": "user", "content": "Hello"}

CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 2}'}}],
}
"""As OpenAI's interface writes it: no text, and arguments as text."""

NEEDED = {"needed_columns": frozenset({"answer"})}
"""A scorer compares with the answer."""


def checked(tmp_path: Path, *rows: dict[str, Any], **changes: Any) -> list[CheckedRow]:
    path = write_rows(tmp_path / "a.jsonl", rows)
    return list(CheckedRows(open_source(path), DataPlan(task="a", path=path, **changes)))


@pytest.mark.parametrize("prompt", PROMPT_NAMES)
@pytest.mark.parametrize("answer", [name for name in ANSWER_NAMES if "." not in name])
def test_columns_are_found_by_their_usual_names(tmp_path: Path, prompt: str, answer: str) -> None:
    (row,) = checked(tmp_path, {"id": 7, prompt: "p", answer: "a"})
    assert row.prompt == "p"
    assert row.columns == {"id": 7, "answer": "a", answer: "a"}


def test_the_more_telling_name_is_taken(tmp_path: Path) -> None:
    (row,) = checked(tmp_path, {"instruction": "i", "question": "q", "target": "t", "solution": "s"})
    assert (row.prompt, row.columns["answer"]) == ("q", "s")
    assert row.columns["instruction"] == "i"


def test_rows_of_verl_work_as_they_are(tmp_path: Path) -> None:
    verl = {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": "What?"}],
        "reward_model": {"style": "rule", "ground_truth": "72"},
        "extra_info": {"index": 0},
    }
    (row,) = checked(tmp_path, verl)
    assert row.prompt == verl["prompt"]
    assert row.columns["answer"] == "72"
    assert row.columns["extra_info"] == {"index": 0}


def test_columns_are_named_by_the_user(tmp_path: Path) -> None:
    row = {"q": "p", "answer": "long", "info": {"short": "4"}}
    (one,) = checked(tmp_path, row, prompt_column="q", answer_column="info.short")
    assert (one.prompt, one.columns["answer"]) == ("p", "4")


@pytest.mark.parametrize(
    ("rows", "changes", "said", "remedy"),
    [
        ([{"text": "a", "b": 1}], {}, "line 1: no column of prompts among b, text", "--prompt-column"),
        ([{"prompts": "a"}], {"prompt_column": "promts"}, "no column 'promts' among", "--prompt-column prompts"),
        ([{"prompt": "a"}], {"answer_column": "gold"}, "no column 'gold'", "--answer-column"),
        ([{"prompt": "a", "gold": 1}, {"prompt": "b"}], {"answer_column": "gold"}, "line 2: there is no column", "row"),
        ([{"prompt": "a"}, {"text": "b"}], {}, "line 2: there is no column 'prompt' among text", "row"),
        ([{"prompt": "a"}, {}], {}, "line 2: the row has no columns", "Remove"),
        ([{"prompt": "a"}, {"prompt": " \n"}], {}, "line 2: the prompt is empty", "Remove"),
        ([{"prompt": None}], {}, "the prompt in 'prompt' is missing or null", "--prompt-column"),
        ([{"prompt": 7}], {}, "the prompt in 'prompt' is a number", "--prompt-column"),
        ([{"prompt": "a", "answer": ""}], NEEDED, "the answer is empty", "answer"),
        ([{"prompt": "a", "answer": None}], {"answer_column": "answer"}, "the answer is empty", "answer"),
        ([{"prompt": "a", "answer": 1}, {"prompt": "b", "answer": "1"}], NEEDED, "answer is a text, and a", "kind"),
        ([{"prompt": "a", "answer": True}, {"prompt": "b", "answer": 1}], NEEDED, "and true or false", "kind"),
        ([{"prompt": "a"}, {"prompt": [USER]}], {}, "line 2: the prompt is a list, and a text in", "same kind"),
        ([{"prompt": "a"}], NEEDED, "no column of answers", "--answer-column"),
        ([{"prompt": "a", "target": 1}], {**NEEDED, "answer_column": "none"}, "no column of answers", "--answer-col"),
        ([{"instruction": "a"}, {"instruction": "a", "input": "b"}], {}, "2: the prompt is in `instr", "n instruction"),
        ([{"prompt": "a", "finals": 1}], {"needed_columns": frozenset({"final"})}, "no column 'final'", "finals"),
        ([{"prompt": "a", "rendered": "b"}], {}, "the column 'rendered' is neither", "Rename"),
        ([{"prompt": "a", "question": "b"}], {"prompt_column": "question"}, "the column 'prompt' is neither", "Rename"),
    ],
)  # fmt: skip
def test_faults_name_the_line_and_the_remedy(
    tmp_path: Path, rows: list[dict[str, Any]], changes: dict[str, Any], said: str, remedy: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        checked(tmp_path, *rows, **changes)
    assert str(caught.value).startswith(f"{tmp_path / 'a.jsonl'}, line ")
    assert said in str(caught.value)
    assert remedy in caught.value.remedy


def test_whole_and_decimal_numbers_are_one_kind(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "answer": 1}, {"prompt": "b", "answer": 1.5}]
    assert len(checked(tmp_path, *rows, needed_columns=frozenset({"answer"}))) == 2


def test_answers_that_no_scorer_reads_are_not_checked(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"prompt": "a", "answer": 1}, {"prompt": "b", "answer": ""}, {"prompt": "c"}]
    assert [row.columns["answer"] for row in checked(tmp_path, *rows)] == [1, "", None]
    with pytest.raises(ConfigError):
        checked(tmp_path, *rows, needed_columns=frozenset({"answer"}))


def test_an_answer_column_of_none_finds_no_answers(tmp_path: Path) -> None:
    (row,) = checked(tmp_path, {"prompt": "a", "target": "7"}, answer_column="none")
    assert (row.answered, row.columns) == (False, {"target": "7"})
    (row,) = checked(tmp_path, {"prompt": "a", "target": "7"})
    assert (row.answered, row.columns) == (True, {"target": "7", "answer": "7"})


@pytest.mark.parametrize("value", ["", " \n", None])
def test_an_instruction_without_input_is_a_prompt(tmp_path: Path, value: str | None) -> None:
    (row,) = checked(tmp_path, {"instruction": "a", "input": value, "output": "c"})
    assert row.prompt == "a"
    (row,) = checked(tmp_path, {"instruction": "a", "input": "b"}, prompt_column="instruction")
    assert (row.prompt, row.columns["input"]) == ("a", "b")
    (row,) = checked(tmp_path, {"question": "a", "input": "b"})
    assert row.prompt == "a"


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "has no messages"),
        ([USER, {"role": "assistant", "content": "Hi"}], "the last message is the assistant's"),
        (
            [USER, {"role": "system", "content": "Be good"}],
            "the last message is not the user's but has the role system",
        ),
        ([{"role": "user", "content": " "}], "the user's last message is empty"),
        ([{"role": "human", "content": "Hi"}], "a message has the role 'human'"),
        ([{"role": "user"}], "is not {role, content}"),
        ([{"role": "user", "content": [{"type": "image", "url": "x"}]}], "is not {role, content}"),
        ([{"role": "user", "content": [{"type": "text", "text": 7}]}], "is not {role, content}"),
        ([{"role": "user", "content": [{"type": "text", "text": "Hi"}, "there"]}], "is not {role, content}"),
        ([{"role": "user", "content": []}], "is not {role, content}"),
        ([{"role": "user", "content": [{"type": "text", "text": " "}]}], "the user's last message is empty"),
        ([{**USER, "tool_calls": [1]}], "is not {role, content}"),
        ([{**USER, "name": "me"}], "is not {role, content}"),
        ([USER, {"role": "assistant", "content": "", "tool_calls": [1]}, USER], "`tool_calls` is no list of calls"),
        ([USER, {"role": "assistant", "tool_calls": []}, USER], "`tool_calls` is no list of calls"),
        ([USER, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}, USER], "no list"),
        ([USER, {"role": "assistant", "tool_calls": [{"function": {"arguments": {}}}]}, USER], "no list of calls"),
        ([USER, {"role": "tool", "content": "4"}], "and none was called"),
        ([USER, CALL, {"role": "tool", "content": {"sum": 4}}], "is not {role, content}"),
        ([USER, CALL, {"role": "tool", "content": "4", "name": 4}], "`name` of a message is a number"),
        ([USER, CALL], "the last message is the assistant's"),
        (["Hi"], "is not {role, content}"),
        (json.dumps([USER]), "the messages are written as text"),
    ],
)
def test_messages_that_are_no_prompt_are_refused(tmp_path: Path, messages: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked(tmp_path, {"messages": messages})
    assert said in str(caught.value)
    assert "line 1" in str(caught.value)
    assert caught.value.remedy


def test_a_row_may_go_on_after_a_tool_has_answered(tmp_path: Path) -> None:
    answered = {"role": "tool", "content": "4", "tool_call_id": "c1", "name": "add"}
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    for tools in ([tool], json.dumps([tool])):
        (row,) = checked(tmp_path, {"messages": [USER, CALL, answered], "tools": tools})
        assert row.tools == (tool,)
        assert row.columns == {"tools": tools}, "scorers read it too"
        call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 2}}}
        assert row.prompt == [USER, {"role": "assistant", "content": "", "tool_calls": [call]}, answered]
    (row,) = checked(tmp_path, {"messages": [USER], "tools": ["hammer", "saw"]})
    assert row.tools == (), "another column that is called so"
    calls = [[USER, {**CALL, "tool_calls": [{"function": {"name": "f", "arguments": {"n": n}}}]}, USER] for n in (1, 2)]
    first, second = (row.prompt for row in checked(tmp_path, *({"messages": each} for each in calls)))
    assert normal_text(first) != normal_text(second)


def test_empty_fields_of_messages_are_left_out(tmp_path: Path) -> None:
    """Parquet gives every message all fields of any message."""
    (row,) = checked(tmp_path, {"messages": [{**USER, "name": None}]})
    assert row.prompt == [USER]


def test_prompts_that_ask_the_same_have_one_normal_text() -> None:
    system = {"role": "system", "content": "Be brief"}
    same: list[Prompt] = ["What is\t2 + 2? ", " \n what IS  2 + 2?\n", [{"role": "user", "content": "What is 2 + 2?"}]]
    assert {normal_text(prompt) for prompt in same} == {b"what is 2 + 2?"}
    assert normal_text("What is 2 +2?") != normal_text("What is 2 + 2?")
    assert normal_text("1 2\n3 4") != normal_text("1 2 3 4"), "a grid has lines"
    assert normal_text("1 2 \r\n 3 4") == normal_text("1 2\n3 4")
    others = [{**system, "content": f"The grid is {n}."} for n in range(2)]
    assert len({normal_text([each, {"role": "user", "content": "Solve it."}]) for each in others}) == 2


def test_text_parts_of_a_message_are_one_text() -> None:
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "2+2?"}]
    prompt = checked_prompt([{"role": "user", "content": parts}], place="rows.jsonl, line 1", column="prompt")
    assert prompt == [{"role": "user", "content": "What is 2+2?"}]


def test_prompts_are_made_of_several_columns_which_stay(tmp_path: Path) -> None:
    template = PromptTemplate.read("{prompt}: {input}")
    (row,) = checked(tmp_path, {"prompt": "Add", "input": "1 2", "output": "3"}, prompt_template=template)
    assert row.prompt == "Add: 1 2"
    assert row.columns == {"input": "1 2", "output": "3"}
    (alpaca,) = checked(
        tmp_path,
        {"instruction": "Add", "input": "1 2", "answer": "3"},
        prompt_template=PromptTemplate.read("{instruction} {input}"),
    )
    assert (alpaca.prompt, alpaca.columns["answer"]) == ("Add 1 2", "3")
