"""Curves of a few characters: height by value, width by the room."""

from __future__ import annotations

import pytest

from p2prl.cli.views.worker_screen import plot, sparkline

BLOCKS = "▁▂▃▄▅▆▇█"


def test_the_lowest_and_the_highest_value_use_the_whole_height() -> None:
    assert sparkline([0.0, 1.0], 10) == "▁█"
    assert sparkline(list(range(8)), 10) == BLOCKS
    assert sparkline([3.0, -1.0], 10) == "█▁"
    assert sparkline([0.0, 1.0], 10, ascii_only=True) == ".#"


def test_equal_values_are_half_high() -> None:
    assert sparkline([2.0] * 3, 10) == "▄▄▄"
    assert plot([2.0], 10, 2) == [" ", "█"]


@pytest.mark.parametrize("width", [1, 3, 7, 100])
def test_more_values_than_columns_are_averaged(width: int) -> None:
    line = sparkline([float(n) for n in range(40)], width)
    assert len(line) == min(width, 40)
    assert list(line) == sorted(line, key=BLOCKS.index)


def test_nothing_is_drawn_without_values_or_room() -> None:
    assert sparkline([], 10) == ""
    assert sparkline([1.0, 2.0], 0) == ""
    assert plot([], 5, 2) == ["", ""]


def test_several_rows_stack_up() -> None:
    top, bottom = plot([0.0, 0.5, 1.0], 10, 2)
    assert bottom == "▁██"
    assert (top[0], top[2]) == (" ", "█")
    assert top[1] in BLOCKS[:2] + " "
