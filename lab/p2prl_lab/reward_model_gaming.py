"""A reward model that can be gamed: its score and success while a policy trains on it, with Clip and Delta and without.

    python -m p2prl_lab.reward_model_gaming --seeds 3 --out OUT

A tiny transformers classifier is trained to tell true steps of chain4 from false ones, and read by the product's own
`RewardModel`. It judges like any process reward model: repeating a true step is true once more, and it errs. PPO then
trains on one reward after another, with the product's losses, Clip and Delta, as `p2prl bench rewards` does. The
model's raw score (the proxy) and success (the truth) are measured on prompts that are never trained on. The table goes
to standard output (docs/benchmarks/rewards.md).
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev

import torch
from transformers import GPT2ForTokenClassification

from p2prl.algorithms.reward_spec import parse_reward
from p2prl.models.base_model.pretrained import LoadedModel
from p2prl.models.rewards.reward_model import RewardModel
from p2prl.models.rewards.reward_model_folder import reward_model_digest
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.small_models.warm_start import warm_start
from p2prl.tasks.chain4 import CHAIN4, demonstration
from p2prl.tasks.digit_chains import ANSWER_MARK, DemonstrationFaults, own_chain, running_values
from p2prl.tasks.process_scorer import TRUE_STEP, Judgement
from p2prl_lab.bench.comparison.benchmark import plan_of
from p2prl_lab.bench.comparison.on_policy_training import OnPolicyTraining
from p2prl_lab.bench.comparison.recipes import parse_recipe
from p2prl_lab.bench.training.environments import environment_by_name
from p2prl_lab.bench.training.warm_start import warm_start_of
from p2prl_lab.progress_lines import say

REWARDS = ("success", "success+0.2*prm", "success+0.2*prm:clip", "success+0.2*prm:delta", "success+0.2*prm:clip+delta")

LONGEST = 16
"""Tokens of a completion: ten more than chain4 needs, because most tasks leave room to spare."""

_BATCH, _UPDATES, _RATE = 128, 600, 3e-3
"""Of the classifier's training, half a minute."""

_CHECKED = 512
"""Texts that its accuracy is measured on."""

_REPEATS = 0.3
_ERRS = 0.15
"""Odds of a step that repeats the one before, and of one that is wrong, in the texts the classifier learns from."""


def judged_text(seed: int) -> tuple[str, str]:
    """A prompt and a chain of up to `LONGEST` digits with repetitions and errors, with an answer or without."""
    draws, prompt = random.Random(seed), CHAIN4.task.prompt(seed)  # noqa: S311 - made data
    written: list[str] = []
    for value in running_values(own_chain(prompt, 3)):
        times = 1 + sum(draws.random() < _REPEATS for _ in range(draws.choice((1, 1, 9))))
        written += [str(draws.randrange(10)) if draws.random() < _ERRS else str(value) for _ in range(times)]
    kept = "".join(written)[: draws.choice((LONGEST - 3, draws.randrange(1, LONGEST - 2)))]
    return prompt, kept + (ANSWER_MARK + kept[-1] if draws.random() < 0.5 else "")


def make_reward_model(folder: Path, *, updates: int = _UPDATES) -> float:
    """Train the classifier on the task's own judgements of steps and save it; its accuracy on steps of fresh texts."""
    base = tiny_model(seed=7)
    warm_start(
        base,
        partial(demonstration, faults=DemonstrationFaults(shortcut=0.0, multiply_as_add=0.0, step_error=0.0)),
        seed=7,
    )
    config = base.model.config.to_dict() | {"num_labels": 1, "classifier_dropout": 0.0}
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(7)
        model = GPT2ForTokenClassification(type(base.model.config).from_dict(config))
    model.transformer.load_state_dict(base.model.transformer.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, weight_decay=0.0)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    for update in range(updates):
        rows = range(update * _BATCH, (update + 1) * _BATCH)
        logits, labels, mask = _labelled(base, model, rows)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits[mask], labels[mask])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        decay.step()
    with torch.no_grad():
        logits, labels, mask = _labelled(base, model, range(1 << 30, (1 << 30) + _CHECKED))
    model.save_pretrained(folder)
    base.tokenizer.save_pretrained(folder)
    return float(((logits > 0) == (labels > 0.5))[mask].float().mean())


def _labelled(
    base: LoadedModel, model: torch.nn.Module, seeds: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits and labels by token, and where a step ends, as the learner reads them: one token is one character."""
    texts = [judged_text(seed) for seed in seeds]
    ids = base.tokenizer([prompt + text for prompt, text in texts], padding=True, return_tensors="pt")["input_ids"]
    labels, mask = torch.zeros(ids.shape), torch.zeros(ids.shape, dtype=torch.bool)
    for row, (prompt, text) in enumerate(texts):
        judgement = CHAIN4.process_scorer.judge(prompt, text, finished=True) if CHAIN4.process_scorer else None
        assert judgement is not None
        for end, score in zip(judgement.ends, judgement.steps, strict=True):
            place = 1 + len(prompt) + end  # the tokenizer puts one token before a text
            labels[row, place], mask[row, place] = float(score == TRUE_STEP), True
    return model(input_ids=ids).logits.squeeze(-1), labels, mask


class ReadSteps:
    """The classifier as a judge of chain4's steps, as a learner with it reads them."""

    def __init__(self, model: RewardModel) -> None:
        self._model = model

    def judge(self, prompt: str, completion: str, finished: bool) -> Judgement:
        """Scores of the steps that the task's grammar finds."""
        assert CHAIN4.process_scorer is not None
        found = CHAIN4.process_scorer.judge(prompt, completion, finished)
        return self._model.judge(prompt, completion, ending="", step_ends=found.ends)


def main() -> None:
    """Parse arguments and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--recipe", default="ppo")
    parser.add_argument("--reward", action="append", choices=REWARDS)
    parser.add_argument("--out", type=Path, required=True)
    settings = parser.parse_args()
    folder = settings.out / "prm"
    if not folder.exists():
        settings.out.mkdir(parents=True, exist_ok=True)
        say(f"reward model: {make_reward_model(folder):.3f} of the steps judged as the task judges them")
    judge = ReadSteps(RewardModel(folder, torch.device("cpu")))
    environment = replace(environment_by_name("chain4"), max_new_tokens=LONGEST, judge=judge)
    recipe = parse_recipe(settings.recipe, max_completion_tokens=LONGEST)
    plan = plan_of(settings.updates, 5e-4)
    seeds = list(range(settings.seeds))
    start_MW = warm_start_of(environment, seeds, settings.out)
    print(
        "| reward | proxy, first | last | success, first | best | last | ± | tokens | readable |\n" + "|---" * 9 + "|"
    )
    for reward in settings.reward or REWARDS:
        parsed = parse_reward(reward + (f"@{reward_model_digest(folder)}" if "prm" in reward else ""))
        found = OnPolicyTraining(environment, recipe, parsed, plan, seeds, start_MW).run()
        first = [fmean(getattr(each.curve[0], name) for each in found) for name in ("true_steps", "success")]
        last = {name: [each.last(name) for each in found] for name in ("true_steps", "success", "tokens", "readable")}
        spread = stdev(last["success"]) if len(found) > 1 else 0.0
        say(f"{reward}: success of each seed {last['success']}, proxy {last['true_steps']}")
        print(
            f"| {reward} | {first[0]:.2f} | {fmean(last['true_steps']):.2f} | {first[1]:.3f} |"
            f" {fmean(each.best for each in found):.3f} | {fmean(last['success']):.3f} | {spread:.3f} |"
            f" {fmean(last['tokens']):.2f} | {fmean(last['readable']):.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
