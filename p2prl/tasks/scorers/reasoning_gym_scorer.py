"""`reasoning-gym`: the score that the row's own dataset gives; the scoring adapter of the library `reasoning-gym`.

Rows come from `reasoning_gym_rows`. A dataset's scorer is third-party code that reads strangers' text, so it runs in
the sandbox only. The nine whose scorers *execute* the answer are refused: an executed answer can return 1 for itself.
"""

from __future__ import annotations

import json
from typing import Any

from p2prl.errors import ConfigError
from p2prl.tasks.data.packed_data import Row
from p2prl.tasks.scorers.answer_text import UnusableRowError, after_last
from p2prl.tasks.scorers.extras import import_extra
from p2prl.tasks.task import MAX_SCORED_CHARS

COLUMN = "reasoning_gym"
"""Column of a row with its dataset's name, settings and metadata."""

EXECUTES_ANSWERS = frozenset(
    {
        "binary_matrix",
        "countdown",
        "intermediate_integration",
        "n_queens",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
        "spiral_matrix",
        "string_insertion",
    }
)
"""Datasets of reasoning-gym 0.1.25 whose `score_answer` evaluates the answer: eval, or sympy's parser."""

TAKES_ANY_ANSWER = frozenset({"game_of_life_halting"})
"""Datasets of reasoning-gym 0.1.25 whose `score_answer` compares `bool(answer)`: any text but an empty one is True."""

COMPARES_TUPLES = frozenset({"arc_agi", "rearc"})
"""Datasets whose scorers compare the answer with nested tuples, which JSON turned into lists."""

_TAG = "<answer>"
_END_TAG = "</answer>"


def refuse_unsafe(name: str) -> None:
    """`ConfigError` for a dataset whose scorer executes answers, or takes any."""
    if name in TAKES_ANY_ANSWER:
        raise ConfigError(
            f"reasoning-gym's {name!r} gives full marks to any text where the answer is yes",
            remedy="Choose another dataset.",
        )
    if name in EXECUTES_ANSWERS:
        remedy = "Choose another dataset."
        if name in ("countdown", "puzzle24"):
            remedy = "Use p2prl's own task `countdown`, whose scorer reads answers by a grammar."
        raise ConfigError(
            f"reasoning-gym's {name!r} executes the text that it scores: a stranger's answer could give itself 1",
            remedy=remedy,
        )


class ReasoningGymScorer:
    """Scores by the row's own dataset, within 0..1.

    What is scored is the text inside the last `<answer>...</answer>`, or the whole text without such a tag, trimmed.
    """

    def __init__(self, *, after: str = "", truncated: bool = False) -> None:
        """Options as of every scorer. `ConfigError` when the library is not installed."""
        self._library = import_extra("reasoning_gym", "reasoning-gym", scorer="reasoning-gym")
        self._after, self._truncated = after, truncated
        self._datasets: dict[str, object] = {}

    def score(self, row: Row, completion: str, finished: bool) -> float:
        """May hang and may raise anything."""
        entry = row.get(COLUMN)
        if not isinstance(entry, dict) or not isinstance(entry.get("dataset"), str):
            raise UnusableRowError(f"the column {COLUMN!r} is missing: the row does not come from reasoning-gym")
        if len(completion) > MAX_SCORED_CHARS or not (finished or self._truncated):
            return 0.0
        text = after_last(completion, self._after)
        if text is None:
            return 0.0
        metadata = _tuples(entry["metadata"]) if entry["dataset"] in COMPARES_TUPLES else entry["metadata"]
        original = {"question": entry["question"], "answer": entry["answer"], "metadata": metadata}
        return float(self._dataset(entry).score_answer(tagged_answer(text), original))

    def _dataset(self, entry: dict[str, Any]) -> Any:
        key = json.dumps([entry["dataset"], entry["settings"]], sort_keys=True)
        if key not in self._datasets:
            refuse_unsafe(entry["dataset"])
            self._datasets[key] = self._library.create_dataset(entry["dataset"], **entry["settings"])
        return self._datasets[key]


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def tagged_answer(text: str) -> str:
    """The text inside the last complete `<answer>` tag, trimmed; the whole text, trimmed, without one."""
    start = text.rfind(_TAG)
    end = text.find(_END_TAG, start)
    return text[start + len(_TAG) : end].strip() if 0 <= start < end else text.strip()
