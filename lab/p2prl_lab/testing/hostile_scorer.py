"""A researcher's file with the worst scorer there is, as text: it executes the answer. For attacks on the sandbox alone."""

from __future__ import annotations

from pathlib import Path

from p2prl.tasks.sandbox.pool import TaskScoring
from p2prl.tasks.scorers.spec import Reward, Scoring, scoring_spec

FILE = """
def evaluate(completions, answer, **columns):
    names = {"row": {"answer": answer[0]}}
    exec(completions[0], names)
    return [float(names.get("result") == answer[0])]
"""
"""An answer that leaves the right answer in the variable `result` scores 1."""


def hostile_scorer(folder: Path) -> TaskScoring:
    """Write the file into `folder`; the scoring of a task that uses it."""
    code = folder / "rewards.py"
    code.write_text(FILE)
    rewards = (Reward(scorer="function", options={"function": "evaluate"}),)
    return TaskScoring(scoring_spec(Scoring(rewards=rewards)), code)
