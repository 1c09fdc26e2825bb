"""Pairs of preferences beside the groups of an update: direct preference optimization on rows that the learner reads.

No volunteer sees them, and nothing of them is signed: they are the run owner's own data. Which pairs an update takes
follows from its number, so that an update that is repeated after a crash takes the same.

Shape legend: B pairs, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from p2prl.algorithms.batch import RolloutBatch
from p2prl.algorithms.loss_registry import build_loss
from p2prl.errors import IntegrityError, require
from p2prl.learner.training.loss_pipeline import Rollouts
from p2prl.learner.training.training_group import Floats, Tokens, TrainingGroup
from p2prl.tasks.data.packed_file import PackedFile

_RECORDS = 3
"""Records of a pair: prompt, chosen and rejected answer, token ids as uint32-le."""

_ANSWERS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class PreferenceConfig:
    """Pairs of a run's own preferences, which each update trains on beside sampled groups (DPO)."""

    pairs_per_update: int = 16
    """Pairs of one update, each row once before any comes again."""
    weight: float = 0.1
    """Factor on their loss, which is added to that of the groups; at 1 it takes more of an update than these."""
    beta: float = 0.1
    """β of DPO, per nat: with a larger one a pair counts as learned sooner."""

    def __post_init__(self) -> None:
        pairs = self.pairs_per_update
        require("preferences.pairs_per_update", pairs, 1 <= pairs <= 65536, "within 1..65536")
        require("preferences.weight", self.weight, 0.0 < self.weight <= 1e3, "above 0, up to 1000")
        require("preferences.beta", self.beta, 0.0 < self.beta <= 1e3, "above 0, up to 1000")


class PreferencePairs:
    """The pairs of a run, with the log-probs that the reference policy gives their answers."""

    def __init__(self, pairs: Path, reference: Path) -> None:
        """`IntegrityError` for files that do not belong together."""
        self._pairs, self._reference = PackedFile(pairs), PackedFile(reference)
        self._newest: tuple[int, npt.NDArray[np.int64]] | None = None
        if len(self._pairs) * _ANSWERS != len(self._reference) * _RECORDS:
            raise IntegrityError(f"{pairs.name} and {reference.name} have another number of pairs")

    def __len__(self) -> int:
        return pair_count(self._pairs)

    def of_update(self, step: int, count: int) -> list[TrainingGroup]:
        """The pairs of the update that starts at `step`, as groups of two with the rewards 1 and 0.

        Every pass over the pairs has an order of its own.
        """
        places = np.arange(step * count, (step + 1) * count)
        return [self._group(int(self._order(int(place // len(self)))[place % len(self)])) for place in places]

    def _order(self, turn: int) -> npt.NDArray[np.int64]:
        """The order of a pass; the newest is remembered."""
        if self._newest is None or self._newest[0] != turn:
            self._newest = turn, np.random.default_rng(turn).permutation(len(self))
        return self._newest[1]

    def _group(self, pair: int) -> TrainingGroup:
        prompt, *answers = pair_tokens(self._pairs, pair)
        logprobs = tuple(
            np.frombuffer(self._reference.record(_ANSWERS * pair + answer), dtype="<f4") for answer in range(_ANSWERS)
        )
        if [len(row) for row in logprobs] != [len(ids) for ids in answers]:
            raise IntegrityError(f"pair {pair}: log-probs of other tokens")
        return TrainingGroup(prompt, tuple(answers), logprobs, np.asarray([1.0, 0.0], dtype=np.float32), staleness=0)


def pair_count(pairs: PackedFile) -> int:
    """Number of pairs."""
    return len(pairs) // _RECORDS


def pair_tokens(pairs: PackedFile, pair: int) -> list[Tokens]:
    """Prompt, chosen and rejected answer of a pair."""
    return [np.frombuffer(pairs.record(_RECORDS * pair + each), dtype="<u4") for each in range(_RECORDS)]


def pair_record(token_ids: Sequence[int]) -> bytes:
    """A prompt or an answer as a record."""
    return np.asarray(token_ids, dtype="<u4").tobytes()


def logprobs_record(logprobs: Floats) -> bytes:
    """Log-probs of an answer as a record."""
    return logprobs.astype("<f4").tobytes()


class Preferences:
    """What an update trains on beside its groups."""

    def __init__(self, pairs: PreferencePairs, config: PreferenceConfig) -> None:
        self._pairs = pairs
        self._config = config
        self._objective = build_loss("dpo", options={"beta": config.beta})

    def of_update(self, step: int) -> list[TrainingGroup]:
        """The pairs of the update that starts at `step`."""
        return self._pairs.of_update(step, self._config.pairs_per_update)

    def loss(self, policy_logprobs_BGT: Tensor, rollouts: Rollouts) -> tuple[Tensor, dict[str, Any]]:
        """The weighted loss, with gradient to the log-probs of both answers of each pair, and what to log of it."""
        advantages = self._objective.advantages(rollouts.rewards_BG)
        batch = RolloutBatch(
            behavior_logprobs_BGT=rollouts.behavior_logprobs_BGT,
            mask_BGT=rollouts.mask_BGT,
            advantages_BG=advantages.advantages_BG,
        )
        output = self._objective.loss(policy_logprobs_BGT, batch)
        gains_BG = (policy_logprobs_BGT.detach() - rollouts.behavior_logprobs_BGT).masked_fill(~rollouts.mask_BGT, 0.0)
        margins_B = gains_BG.sum(dim=-1).diff(dim=-1).neg() * self._config.beta
        figures = {
            "preferences/loss": float(output.loss.detach()),
            "preferences/accuracy": float(output.metrics["pair_accuracy"]),
            "preferences/margin": float(margins_B.mean()),
        }
        return self._config.weight * output.loss, figures
