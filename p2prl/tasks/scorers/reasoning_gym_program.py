"""Make rows of reasoning-gym datasets in a process of its own: JSON request as argument, one JSON row a line.

`reasoning_gym_rows` starts it under `PYTHONHASHSEED=0`. An error is a last line with `error` and `remedy`.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import fields
from typing import Any

from p2prl.errors import ConfigError
from p2prl.tasks.scorers.extras import import_extra
from p2prl.tasks.scorers.reasoning_gym_scorer import COLUMN, ReasoningGymScorer, refuse_unsafe

CHECKED_ROWS = 8
"""Rows of each dataset whose own answer is scored after the way through JSON."""


def main(request: str) -> None:
    """Write the rows of a request to standard output. What datasets print goes to standard error."""
    rows = sys.stdout
    with redirect_stdout(sys.stderr):
        try:
            for row in made_rows(json.loads(request)):
                rows.write(json.dumps(row, allow_nan=False) + "\n")
        except ConfigError as error:
            rows.write(json.dumps({"error": str(error), "remedy": error.remedy}) + "\n")


def made_rows(request: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows of `GymDataset.document`s, one of each dataset in turn until all are used up."""
    scorer = ReasoningGymScorer()
    open_datasets = [(entry, _dataset(entry["name"], entry["settings"])) for entry in request]
    answered = all(dataset[0]["answer"] is not None for _, dataset in open_datasets)
    for index in range(max(len(dataset) for _, dataset in open_datasets)):
        for entry, dataset in open_datasets:
            if index < len(dataset):
                row = _row(entry["name"], entry["settings"], dataset[index])
                if answered:
                    row["answer"] = str(row[COLUMN]["answer"])
                if index < CHECKED_ROWS:
                    _check(entry["name"], row, scorer)
                yield row


def _dataset(name: str, settings: dict[str, object]) -> Any:
    library = import_extra("reasoning_gym", "reasoning-gym", scorer="reasoning-gym")
    known = library.factory.DATASETS
    refuse_unsafe(name)
    if name not in known or name == "composite":
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        raise ConfigError(
            f"reasoning-gym has no dataset {name!r}" if name not in known else "'composite' is a mix, not a dataset",
            remedy=f"Did you mean {', '.join(near)}?" if name not in known and near else "Name datasets, with commas.",
        )
    legal = sorted(part.name for part in fields(known[name][1]))
    for key in settings:
        if key not in legal:
            near = difflib.get_close_matches(key, legal, n=1)
            remedy = f"Did you mean {near[0]!r}?" if near else f"Choose one of {', '.join(legal)}."
            raise ConfigError(f"{name} has no setting {key!r}", remedy=remedy)
    try:
        return library.create_dataset(name, **settings)
    except (AssertionError, TypeError, ValueError) as error:  # its own checks of settings
        raise ConfigError(
            f"{name} refuses its settings: {str(error)[:200]}", remedy=f"Correct one of {', '.join(legal)}."
        ) from error


def _row(name: str, settings: dict[str, object], item: dict[str, object]) -> dict[str, Any]:
    return {
        "prompt": item["question"],
        COLUMN: {
            "dataset": name,
            "settings": settings,
            "question": item["question"],
            "answer": item["answer"],
            "metadata": item["metadata"],
        },
    }


def _check(name: str, row: dict[str, Any], scorer: ReasoningGymScorer) -> None:
    answer = row[COLUMN]["answer"]
    if answer and scorer.score(json.loads(json.dumps(row)), str(answer), True) != 1.0:
        raise ConfigError(
            f"{name}: a row's own answer does not score 1 once the row is stored as JSON",
            remedy="Choose another dataset.",
        )


if __name__ == "__main__":
    main(sys.argv[1])
