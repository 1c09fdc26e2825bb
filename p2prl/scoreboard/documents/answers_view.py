"""API document of sample answers: the same held-out prompts before training and now. Pure.

The texts come from a data set and from the policy. Nobody has checked them, so readers must treat them as text alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from p2prl.scoreboard.documents.page_schema import Answer, AnswerPair, AnswersDocument
from p2prl.scoreboard.ledger.ledger_sources import Snapshot

MAX_PAIRS = 6
"""Pairs in one answer: what a visitor reads before scrolling on."""

MAX_CHARS = 2_000
"""Characters of a prompt or an answer; the learner records fewer, a file that was edited may hold more."""


def answers_document(snapshot: Snapshot) -> AnswersDocument:
    """Pairs of the first and the newest evaluation that recorded answers, those that turned right first.

    Empty until there are two such evaluations, and on a board without evaluations.
    """
    recorded = [line for line in snapshot.evaluations if line.get("answers")]
    if len(recorded) < 2:
        return AnswersDocument(pairs=[])
    first, last = recorded[0], recorded[-1]
    before = {(each["task"], each["prompt"]): each for each in first["answers"]}
    pairs = [
        AnswerPair(
            task=str(each["task"]),
            prompt=_shown(each["prompt"]),
            before=_answer(first, before[each["task"], each["prompt"]]),
            after=_answer(last, each),
        )
        for each in last["answers"]
        if (each["task"], each["prompt"]) in before
    ]
    # A stable sort: what was learned, what could be done before, what is still wrong.
    pairs.sort(key=lambda pair: (not pair.after.passes, pair.before.passes))
    return AnswersDocument(pairs=pairs[:MAX_PAIRS])


def _shown(text: object) -> str:
    """A text without characters that would turn or hide the text around it; unprintable ones become U+FFFD."""
    return "".join(each if each.isprintable() or each == "\n" else "\ufffd" for each in str(text)[:MAX_CHARS])


def _answer(line: Mapping[str, Any], answer: Mapping[str, Any]) -> Answer:
    return Answer(
        version=line["version"],
        step=line["step"],
        text=_shown(answer["answer"]),
        passes=bool(answer["passes"]),
    )
