"""Rows of preferences: the forms that trainers write, and refusals that name the row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from p2prl.errors import ConfigError
from p2prl.tasks.data.data_source import open_source
from p2prl.tasks.data.preference_rows import PreferenceRow, preference_rows

ASKED = {"role": "user", "content": "Two and two?"}
RULE = {"role": "system", "content": "Be brief."}


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def read(folder: Path, *rows: object) -> list[PreferenceRow]:
    file = folder / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(preference_rows(open_source(file)))


@pytest.mark.parametrize(
    ("row", "prompt"),
    [
        ({"prompt": "Two and two?", "chosen": "4", "rejected": "5"}, "Two and two?"),
        ({"question": "Two and two?", "chosen": "4", "rejected": "5", "score": 3}, "Two and two?"),
        ({"prompt": [RULE, ASKED], "chosen": [said("4")], "rejected": [said("5")]}, [RULE, ASKED]),
        ({"prompt": [ASKED], "chosen": "4", "rejected": [said("5")]}, [ASKED]),
        # UltraFeedback: whole conversations, with the question again as a text
        ({"prompt": "Two and two?", "chosen": [ASKED, said("4")], "rejected": [ASKED, said("5")]}, [ASKED]),
        # HH-RLHF in TRL's form: no column of prompts
        ({"chosen": [RULE, ASKED, said("4")], "rejected": [RULE, ASKED, said("5")]}, [RULE, ASKED]),
    ],
)
def test_forms_that_trainers_write(tmp_path: Path, row: dict[str, Any], prompt: object) -> None:
    (found,) = read(tmp_path, row)
    assert (found.prompt, found.chosen, found.rejected) == (prompt, "4", "5")


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"prompt": "?", "chosen": "4"}, "no column 'rejected'"),
        ({"chosen": "4", "rejected": "5"}, "there is no prompt"),
        ({"prompt": "?", "chosen": "", "rejected": "5"}, "'chosen' is empty"),
        ({"prompt": "?", "chosen": "4", "rejected": None}, "'rejected' is null"),
        ({"prompt": "?", "chosen": "4", "rejected": 5}, "'rejected' is a number"),
        ({"prompt": "?", "chosen": [], "rejected": "5"}, "'chosen' is a list"),
        ({"prompt": "?", "chosen": [ASKED], "rejected": "5"}, "not the assistant's"),
        ({"chosen": [ASKED, said("4")], "rejected": [RULE, ASKED, said("5")]}, "conversations differ"),
        ({"prompt": "Other?", "chosen": [ASKED, said("4")], "rejected": [ASKED, said("5")]}, "not that of the"),
        ({"prompt": [said("?")], "chosen": "4", "rejected": "5"}, "last message is the assistant's"),
        ({"prompt": " ", "chosen": "4", "rejected": "5"}, "prompt is empty"),
    ],
)
def test_a_faulty_row_is_named(tmp_path: Path, row: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        read(tmp_path, {"prompt": "?", "chosen": "a", "rejected": "b"}, row)
    assert "line 2" in str(caught.value)
    assert caught.value.remedy
