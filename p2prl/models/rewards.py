"""The reward of a run, computed: a task's verdict, and where the run says so what its process scorer adds to it.

Volunteers show it to their owners; the learner recomputes it from the tokens and trains on nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from p2prl.algorithms.reward_shaping import completion_rewards
from p2prl.algorithms.reward_spec import parse_reward
from p2prl.tasks.process_scorer import ProcessScorer
from p2prl.tasks.registry import scorer_by_task


class RunReward:
    """What the manifest's `reward` says, for the tasks of a run."""

    def __init__(self, text: str, tasks: Iterable[str]) -> None:
        """ConfigError for a text that names no reward, and for a task that lacks the scorer it needs."""
        self._config = parse_reward(text)
        self.judges_steps = self._config.outcome_weight > 0 or self._config.process_weight > 0
        """Whether more than the task's verdict counts."""
        self._scorers: dict[str, ProcessScorer] = (
            {task: scorer_by_task(task) for task in tasks} if self.judges_steps else {}
        )

    def of(
        self, task: str, prompt: str, completions: Sequence[tuple[str, bool]], success: Sequence[float]
    ) -> tuple[float, ...]:
        """Rewards of completions (text, finished) of one prompt, whose verdicts are `success`; in float64."""
        if not self.judges_steps:
            return tuple(self._config.success_weight * verdict for verdict in success)
        judgements = [self._scorers[task].judge(prompt, text, finished) for text, finished in completions]
        longest = max(1, *(len(judgement.steps) for judgement in judgements))
        steps = [judgement.steps + (0.0,) * (longest - len(judgement.steps)) for judgement in judgements]
        counts = torch.tensor([[len(judgement.steps)] for judgement in judgements])
        rewards_BG = completion_rewards(
            torch.tensor([success], dtype=torch.float64),
            self._config,
            outcome_BG=torch.tensor([[judgement.outcome for judgement in judgements]], dtype=torch.float64),
            step_scores_BGK=torch.tensor([steps], dtype=torch.float64),
            step_mask_BGK=(torch.arange(longest) < counts).unsqueeze(0),
        )
        return tuple(rewards_BG[0].tolist())
