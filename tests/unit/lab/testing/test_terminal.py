"""A person's terminal: what is typed is seen before anything else is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2prl_lab.testing.terminal import Terminal

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")


class LateTerminal(Terminal):
    """Each look shows what was there three looks before, as if the shell were slow to answer keys."""

    seen: tuple[str, ...] = ()

    def screen(self) -> str:
        self.seen = (*self.seen[-3:], super().screen())
        return self.seen[0]


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    opened = LateTerminal(tmp_path, os.environ, columns=40, rows=30)
    yield opened
    opened.close()


def at_prompt(screen: str) -> bool:
    return screen.endswith("$\n")


def test_a_prompt_after_a_line_is_the_one_below_its_output(terminal: Terminal) -> None:
    for number in range(3):
        terminal.type(f"echo {number} squared is $(({number} * {number}))")
        assert f"\n{number} squared is {number**2}\n$\n" in terminal.wait(at_prompt, 30)


def test_a_line_that_wraps_or_stood_there_before_is_seen(terminal: Terminal) -> None:
    line = "echo " + " ".join(["again"] * 12)
    for _ in range(2):
        terminal.type(line)
        terminal.wait(at_prompt, 30)
    terminal.clear()
    terminal.type(line)
    assert terminal.wait(at_prompt, 30).count("$ echo again") == 1
