"""Grading of sampled completions: success, the process scorer's judgement of each step, and rewards on tokens.

Shape legend: M seeds, B prompts, G completions, T tokens, K steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from p2prl.algorithms.process_rewards import RewardConfig, completion_rewards, refine_steps, steps_to_tokens
from p2prl.tasks.process_scorer import UNREADABLE, Judgement
from p2prl.tasks.task_registry import scorer_by_task
from p2prl_lab.bench.training.environments import Environment
from p2prl_lab.bench.training.stacked_sampling import Completions

T = TypeVar("T")
_Case = tuple[str, tuple[int, ...], bool]
"""Prompt, completion tokens, and whether it finished."""


@dataclass(frozen=True, kw_only=True)
class Grades:
    """Grades of completions; the step dimension has the length of the longest list of steps."""

    success_MBG: Tensor
    """0 or 1."""
    outcome_MBG: Tensor
    step_scores_MBGK: Tensor
    step_mask_MBGK: Tensor
    """Bool."""
    step_ends_MBGK: Tensor
    """Position of each step's last token; 0 off the mask."""
    readable_MBG: Tensor
    """Bool: finished, and accepted by the scorer's grammar."""

    def completion_rewards(self, cfg: RewardConfig) -> Tensor:
        """One reward per completion, (M, B, G)."""
        rewards_NG = completion_rewards(
            self.success_MBG.flatten(0, 1),
            cfg,
            outcome_BG=self.outcome_MBG.flatten(0, 1),
            step_scores_BGK=self.step_scores_MBGK.flatten(0, 1),
            step_mask_BGK=self.step_mask_MBGK.flatten(0, 1),
        )
        return rewards_NG.view_as(self.success_MBG)

    def token_rewards(self, cfg: RewardConfig, mask_MBGT: Tensor) -> Tensor:
        """Rewards on tokens, (M, B, G, T): a step's on its last token, the outcome's on the completion's last."""
        scores_NGK, mask_NGK = self.step_scores_MBGK.flatten(0, 1), self.step_mask_MBGK.flatten(0, 1)
        refined_NGK = cfg.process_weight * refine_steps(scores_NGK, mask_NGK, cfg)
        tokens = mask_MBGT.shape[-1]
        rewards_NGT = steps_to_tokens(refined_NGK, self.step_ends_MBGK.flatten(0, 1), mask_NGK, tokens=tokens)
        at_end_MBG = cfg.success_weight * self.success_MBG + cfg.outcome_weight * self.outcome_MBG
        last_MBG = mask_MBGT.sum(dim=-1) - 1
        return rewards_NGT.view(mask_MBGT.shape).scatter_add(-1, last_MBG.unsqueeze(-1), at_end_MBG.unsqueeze(-1))

    def step_ends(self, mask_MBGT: Tensor) -> Tensor:
        """Bool (M, B, G, T): the last token of each step, and of each completion."""
        counts_MBGT = torch.zeros_like(mask_MBGT, dtype=torch.int64)
        counts_MBGT.scatter_add_(-1, self.step_ends_MBGK, self.step_mask_MBGK.long())
        last_MBG = mask_MBGT.sum(dim=-1) - 1
        return counts_MBGT.scatter_add_(-1, last_MBG.unsqueeze(-1), torch.ones_like(last_MBG).unsqueeze(-1)) > 0


def grade(environment: Environment, prompts: Sequence[Sequence[str]], completions: Completions) -> Grades:
    """Grade completions (M, B, G) of `prompts`, which are M lists of B."""
    shape = completions.finished_MBG.shape

    def verdict(case: _Case) -> tuple[float, Judgement]:
        return environment.reward(*case), _judgement(environment, *case)

    found = _once_each(prompts, completions, verdict)
    judgements = [judgement for _, judgement in found]
    longest = max(1, *(len(judgement.steps) for judgement in judgements))

    def padded(rows: Sequence[Sequence[float]], kind: torch.dtype) -> Tensor:
        return torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], dtype=kind).view(*shape, longest)

    counts = torch.tensor([len(judgement.steps) for judgement in judgements]).view(*shape, 1)
    readable = torch.tensor([judgement != UNREADABLE for judgement in judgements]).view(shape)
    return Grades(
        success_MBG=torch.tensor([success for success, _ in found]).view(shape),
        outcome_MBG=torch.tensor([judgement.outcome for judgement in judgements]).view(shape),
        step_scores_MBGK=padded([judgement.steps for judgement in judgements], torch.float32),
        step_mask_MBGK=torch.arange(longest) < counts,
        step_ends_MBGK=padded([judgement.ends for judgement in judgements], torch.int64),
        readable_MBG=readable & completions.finished_MBG,
    )


def success_rewards(environment: Environment, prompts: Sequence[Sequence[str]], completions: Completions) -> Tensor:
    """The task's reward of each completion, (M, B, G); `prompts` are M lists of B."""
    rewards = _once_each(prompts, completions, lambda case: environment.reward(*case))
    return torch.tensor(rewards).view(completions.finished_MBG.shape)


def _once_each(prompts: Sequence[Sequence[str]], completions: Completions, grade_case: Callable[[_Case], T]) -> list[T]:
    """`grade_case` of every completion; equal ones are graded once, since a trained policy repeats itself."""
    size = completions.tokens_MBGT.shape[2]
    rows = zip(
        [prompt for row in prompts for prompt in row for _ in range(size)],
        completions.tokens_MBGT.flatten(0, 2).tolist(),
        completions.mask_MBGT.sum(dim=-1).flatten().tolist(),
        completions.finished_MBG.flatten().tolist(),
        strict=True,
    )
    known: dict[_Case, T] = {}
    graded = []
    for prompt, tokens, length, finished in rows:
        case = (prompt, tuple(tokens[:length]), finished)
        if case not in known:
            known[case] = grade_case(case)
        graded.append(known[case])
    return graded


def _judgement(environment: Environment, prompt: str, tokens: tuple[int, ...], finished: bool) -> Judgement:
    """The process scorer's judgement. A token is one character here, so positions of characters are those of tokens."""
    symbols = tokens[:-1] if finished else tokens
    if any(token >= len(environment.symbols) for token in symbols):
        return UNREADABLE
    text = "".join(environment.symbols[token] for token in symbols)
    return (environment.judge or scorer_by_task(environment.task.name)).judge(prompt, text, finished)
