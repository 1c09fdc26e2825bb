"""Rows with one prompt: repeated where their answers are the same to a scorer, else conflicts, refused or dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from p2prl.errors import ConfigError
from tests.unit.tasks.data.packing_rig import pack, rows_in, write_rows


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("1 + 1 = 2\n#### 2", "Two.\n#### 2", True),
        ("so \\boxed{3}", "hence \\boxed{3.0}", True),
        ("3", "3.0", True),
        (3, 3.0, True),
        ("\\frac{1}{2}", "0.5", True),
        ("$x + 1$", "x+1", True),
        ([1, 2], [1, 2], True),
        ("#### 2", "#### 3", False),
        ("yes", "no", False),
        ("x2", "x3", False),
        ([1, 2], [2, 1], False),
        (True, False, False),
    ],
)
def test_answers_are_compared_as_scorers_compare_them(tmp_path: Path, first: Any, second: Any, same: bool) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"prompt": "p", "answer": first}, {"prompt": "p", "answer": second}])
    if same:
        assert pack(tmp_path / "out", path).rows == 1
        assert rows_in(tmp_path / "out")[0]["answer"] == first
        return
    with pytest.raises(ConfigError, match="with another answer"):
        pack(tmp_path / "out", path)


def test_conflicts_are_counted_and_may_be_dropped(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{n % 4}", "answer": str(n // 8)} for n in range(11)] + [{"prompt": "q", "answer": "1"}]
    path = write_rows(tmp_path / "a.jsonl", rows)
    with pytest.raises(ConfigError, match=r"line 9: .* line 1, with another answer; 2 more rows are like it") as caught:
        pack(tmp_path / "out", path)
    assert "--drop-conflicts" in caught.value.remedy
    packed = pack(tmp_path / "dropped", path, drop_conflicts=True)
    assert [row["answer"] for row in rows_in(tmp_path / "dropped")] == ["0", "0", "0", "0", "1"]
    lines = f"{path}, line 9, which contradicts {path}, line 1."
    assert f"3 rows contradict earlier ones and were left out; the first: {lines}" in packed.notices
    assert any(notice.startswith("4 rows repeat earlier ones") for notice in packed.notices)


@pytest.mark.parametrize("changes", [{}, {"answer_column": "none"}])
def test_without_answers_all_columns_are_compared(tmp_path: Path, changes: dict[str, Any]) -> None:
    column = "target" if changes else "tests"
    rows = [{"prompt": "p", column: "1"}, {"prompt": "p", column: "1"}, {"prompt": "p", column: "1.0"}]
    assert pack(tmp_path / "same", write_rows(tmp_path / "a", rows[:2]), **changes).rows == 1
    with pytest.raises(ConfigError, match=r"line 3: the same prompt as .* line 1, with other columns"):
        pack(tmp_path / "out", write_rows(tmp_path / "b", rows), **changes)
