"""DPO on pairs of a file beside methods that sample: success on chain4 after as many updates on one preference set.

    python -m p2prl_lab.preference_pairs --seeds 3

Each seed warm-starts the small model and lets it answer prompts eight times. A right and a wrong answer of one prompt
are a pair; every method then trains the same weights for as many updates on as many answers: `dpo` on the pairs alone,
`default` and `ppo` on fresh answers of the policy itself, `default + pairs` on both, with the pairs beside. The table
goes to standard output (docs/benchmarks/preferences.md).
"""

from __future__ import annotations

import argparse
import copy
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from p2prl.algorithms.loss_registry import build_loss
from p2prl.config.presets import preset_by_name
from p2prl.learner.training.local_update_engine import make_trainer
from p2prl.learner.training.loss_pipeline import LossPipeline, LossPipelineConfig
from p2prl.learner.training.optimizer_config import OptimizerConfig
from p2prl.learner.training.optimizer_step import Trainer
from p2prl.learner.training.preferences import (
    PreferenceConfig,
    PreferencePairs,
    Preferences,
    logprobs_record,
    pair_record,
)
from p2prl.learner.training.training_group import TrainingGroup, training_group
from p2prl.learner.training.value_head import ValueHeadConfig
from p2prl.models.base_model.pretrained import LoadedModel
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.small_models.warm_start import warm_start
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl.tasks.chain4 import CHAIN4, demonstration
from p2prl.tasks.data.packed_file import PackedWriter
from p2prl_lab.progress_lines import say

GROUPS, GROUP_SIZE = 16, 8
"""Prompts of an update and answers of each; pairs alone are as many answers."""

METHODS = ("dpo", "default", "ppo", "default + pairs")

_SEEDS_PER_RUN = 10_000_000
"""Prompts of different seeds are never shared, and none is among those that pairs are made of."""

_EVALUATED = 512
_EVALUATED_FROM = 1 << 40
"""Prompts to measure with, and the seed of the first: none is trained on."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A sampled answer."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    reward: float


class Student:
    """A model that answers prompts of chain4."""

    def __init__(self, loaded: LoadedModel, seed: int) -> None:
        self.model = loaded.model
        self.codec = TextCodec(loaded.tokenizer, loaded.model)
        self._generator = torch.Generator().manual_seed(seed)

    def answers(self, seeds: Sequence[int], each: int) -> list[tuple[tuple[int, ...], list[Answer]]]:
        """For each prompt its tokens and `each` answers. All prompts of the task have the same length."""
        texts = [CHAIN4.task.prompt(seed) for seed in seeds]
        prompts = [prompt for prompt in self.codec.encode_all(texts) for _ in range(each)]
        ids, chosen = torch.tensor(prompts), []
        with torch.no_grad():
            for _ in range(CHAIN4.max_new_tokens):
                logprobs = torch.log_softmax(self.model(ids).logits[:, -1], -1)
                drawn = torch.multinomial(logprobs.exp(), 1, generator=self._generator)
                chosen.append(logprobs.gather(1, drawn))
                ids = torch.cat([ids, drawn], 1)
        rows, scores = ids[:, len(prompts[0]) :].tolist(), torch.cat(chosen, 1).tolist()
        found = [self._answer(texts[at // each], row, scores[at]) for at, row in enumerate(rows)]
        return [(prompts[at], found[at : at + each]) for at in range(0, len(found), each)]

    def _answer(self, prompt: str, row: list[int], logprobs: list[float]) -> Answer:
        ends = [place for place, token in enumerate(row) if token in self.codec.stop_ids]
        length = ends[0] + 1 if ends else len(row)
        text = self.codec.decode(row[: length - 1] if ends else row)
        reward = CHAIN4.task.score(prompt, text, bool(ends)).reward
        return Answer(tuple(row[:length]), tuple(logprobs[:length]), reward)

    def groups(self, seeds: Sequence[int]) -> list[TrainingGroup]:
        """A batch of fresh groups."""
        return [
            training_group(
                prompt,
                [answer.ids for answer in answers],
                [answer.logprobs for answer in answers],
                [answer.reward for answer in answers],
                0,
            )
            for prompt, answers in self.answers(seeds, GROUP_SIZE)
        ]

    def success(self) -> float:
        """Share of right answers, one to each of fresh prompts."""
        seeds = range(_EVALUATED_FROM, _EVALUATED_FROM + _EVALUATED)
        return fmean(answers[0].reward for _, answers in self.answers(seeds, 1))


def write_pairs(student: Student, prompts: int, folder: Path) -> PreferencePairs:
    """Pairs of a right and a wrong answer of the student, one of each prompt that has both."""
    with PackedWriter(folder / "pairs") as pairs, PackedWriter(folder / "reference") as reference:
        for prompt, answers in student.answers(range(prompts), GROUP_SIZE):
            right, wrong = ([each for each in answers if each.reward == wanted] for wanted in (1.0, 0.0))
            if right and wrong:
                pairs.append(pair_record(prompt))
                for answer in (right[0], wrong[0]):
                    pairs.append(pair_record(answer.ids))
                    reference.append(logprobs_record(np.asarray(answer.logprobs, dtype=np.float32)))
        pairs.finish()
        reference.finish()
    return PreferencePairs(folder / "pairs", folder / "reference")


def _pipeline(method: str, beta: float) -> LossPipeline:
    if method == "dpo":
        return LossPipeline.plain(build_loss("dpo", options={"beta": beta}))
    if method == "ppo":
        return LossPipeline(LossPipelineConfig(objective=build_loss("ppo"), value=ValueHeadConfig()))
    usual = tomllib.loads(preset_by_name("chain4").settings_text())["loss"]
    return LossPipeline.plain(build_loss(usual["name"], options=usual["options"]))


def train(first: LoadedModel, pairs: PreferencePairs, method: str, *, seed: int, settings: argparse.Namespace) -> float:
    """Success after the updates of a method."""
    loaded = replace(first, model=copy.deepcopy(first.model))
    student = Student(loaded, seed)
    beside = None
    if method == "default + pairs":
        beside = Preferences(
            pairs, PreferenceConfig(pairs_per_update=GROUPS, beta=settings.beta, weight=settings.weight)
        )
    trainer: Trainer = make_trainer(
        student.model,
        _pipeline(method, settings.beta),
        OptimizerConfig(learning_rate=settings.lr),
        temperature=1.0,
        preferences=beside,
    )

    def batch(step: int) -> list[TrainingGroup]:
        if method == "dpo":
            return pairs.of_update(step, GROUPS * GROUP_SIZE // 2)
        begin = (seed + 1) * _SEEDS_PER_RUN + step * GROUPS
        return student.groups(range(begin, begin + GROUPS))

    for step in range(settings.updates):
        trainer.update(batch(step))
    return student.success()


def main() -> None:
    """Train every method on every seed, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--prompts", type=int, default=1024, help="prompts that pairs are made of")
    parser.add_argument("--lr", type=float, default=2.5e-4)
    parser.add_argument("--beta", type=float, default=0.1, help="of DPO")
    parser.add_argument("--weight", type=float, default=PreferenceConfig().weight, help="of the pairs beside groups")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), help="train by these alone")
    settings = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[float]] = {name: [] for name in ("warm start", *settings.methods)}
    counts = []
    for seed in range(settings.seeds):
        first: Any = tiny_model("chain4", seed=seed)
        warm_start(first, demonstration, seed=seed)
        student = Student(first, seed)
        found["warm start"].append(student.success())
        with TemporaryDirectory() as folder:
            pairs = write_pairs(student, settings.prompts, Path(folder))
            counts.append(len(pairs))
            for method in settings.methods:
                found[method].append(train(first, pairs, method, seed=seed, settings=settings))
                say(f"seed {seed}, {method}: {found[method][-1]:.3f}")
    print(f"pairs: {', '.join(map(str, counts))}\n\n| method | success | ± | seeds |\n|---|---:|---:|---|")
    for name, values in found.items():
        spread = stdev(values) if len(values) > 1 else 0.0
        print(f"| {name} | {fmean(values):.3f} | {spread:.3f} | {', '.join(f'{value:.3f}' for value in values)} |")


if __name__ == "__main__":
    main()
