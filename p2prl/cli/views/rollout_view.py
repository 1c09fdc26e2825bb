"""A rollout of this machine as lines for people: the prompt, the answers and their rewards."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from p2prl.cli.views.quantities import reward_text
from p2prl.cli.views.receipt_advice import advice
from p2prl.plain_text import cleaned, counted
from p2prl.time_text import age_text

_MOST_SHOWN = 4
"""Answers shown: the best, the worst and others between them tell what the policy is rewarded for."""

_MOST_LINES = 8
"""Lines of a prompt or an answer on a terminal."""


def rollout_lines(rollout: Mapping[str, Any], *, now: float, width: int | None) -> list[str]:
    """The rollout of `p2prl watch --json`; `now` is Unix seconds.

    On a terminal of `width` columns lines are wrapped and long texts end early; with None, for a file, they are whole.
    """
    answers = rollout["completions"]
    tokens = sum(answer["tokens"] for answer in answers)
    pace = f", {tokens / rollout['seconds']:,.0f} tokens/s" if rollout["seconds"] > 0 else ""
    heading = (
        f"{rollout['run']}  {rollout['task']}  slot {rollout['slot']:,} of v{rollout['version']:,}, sampled "
        f"{age_text(now - rollout['sampled_at'])} ago: "
        f"{counted(len(answers), 'answer')}, {counted(tokens, 'token')}{pace}"
    )
    lines = [*_wrapped("", cleaned(heading), width), *_wrapped("prompt   ", rollout["prompt"], width)]
    shown = _chosen(answers)
    for place in shown:
        answer = answers[place]
        label = f"#{place + 1:<3}{reward_text(answer['reward']):>4} "
        end = "" if answer["finished"] else " … (cut off at the run's longest answer)"
        lines += _wrapped(label, answer["text"] + end, width)
    if len(shown) < len(answers):
        lines.append(f"         and {counted(len(answers) - len(shown), 'more answer')}: --json shows all")
    return [*lines, *_wrapped("reward   ", _reward(rollout), width), *_wrapped("now      ", _state(rollout), width)]


def _chosen(answers: list[Mapping[str, Any]]) -> list[int]:
    """Places of the answers shown: the best, the worst, then the first others."""
    places = list(range(len(answers)))
    if len(places) <= _MOST_SHOWN or answers[0]["reward"] is None:
        return places[:_MOST_SHOWN]
    ordered = sorted(places, key=lambda place: -answers[place]["reward"])
    ends = dict.fromkeys([ordered[0], ordered[-1], *places])
    return sorted(list(ends)[:_MOST_SHOWN])


def _reward(rollout: Mapping[str, Any]) -> str:
    rewards = [answer["reward"] for answer in rollout["completions"] if answer["reward"] is not None]
    own = f"mean {sum(rewards) / len(rewards):.2f} by this machine's own scoring" if rewards else ""
    learner = rollout["learner_reward"]
    judged = "" if learner is None else f"mean {learner:.2f} by the learner"
    return ", ".join(part for part in (own, judged) if part) or "only the learner can score this task"


def _state(rollout: Mapping[str, Any]) -> str:
    why, _ = advice(rollout["state"], rollout["reason"])
    return f"{rollout['state']}: {why}"


def _wrapped(label: str, text: str, width: int | None) -> list[str]:
    """Paragraphs of a stranger's text below one another, beside a label."""
    lines: list[str] = []
    for paragraph in text.splitlines() or [""]:
        whole = cleaned(paragraph)
        lines += [whole] if width is None else textwrap.wrap(whole, max(20, width - len(label))) or [""]
    if width is not None and len(lines) > _MOST_LINES:
        lines = [*lines[: _MOST_LINES - 1], "…"]
    return [(label if place == 0 else " " * len(label)) + line for place, line in enumerate(lines)]
