"""Losses against TRL's own, values and gradients, where TRL is installed.

TRL is not among the pinned packages: `pip install --no-deps -c constraints.txt trl datasets pandas dill multiprocess`.
Its trainer is given log-probs in place of a model; all else that `_compute_loss` reads are settings.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from p2prl.algorithms.batch import RolloutBatch
from p2prl.algorithms.loss_registry import build_loss
from tests.unit.algorithms.batches import random_batch

LIMIT = 16

SAME: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "grpo": ({}, {"loss_type": "grpo"}),
    "dr_grpo": ({}, {"loss_type": "dr_grpo"}),
    "dapo": ({}, {"loss_type": "dapo", "epsilon_high": 0.28}),
    "two_sided": ({}, {"loss_type": "grpo", "delta": 4.0}),
    "gspo": ({}, {"loss_type": "grpo", "importance_sampling_level": "sequence"}),
    "luspo": ({}, {"loss_type": "luspo", "importance_sampling_level": "sequence"}),
    "cispo": ({"cap": 5.0}, {"loss_type": "cispo", "epsilon_high": 5.0}),
    "sapo": ({}, {"loss_type": "sapo"}),
    "vespo": ({}, {"loss_type": "vespo"}),
    "opsm": ({}, {"loss_type": "grpo", "off_policy_mask_threshold": 0.5}),
}
"""Loss → its options here, and TRL's settings."""

LESS_EXACT = {"sapo": (1e-6, 1e-7)}
"""Relative and absolute: TRL holds SAPO's two temperatures in float32."""

TIMES = {"luspo": LIMIT}
"""TRL's mean is over completions alone; here a sum over a completion is divided by the limit."""


@pytest.fixture(scope="module")
def trainer() -> type[Any]:
    """TRL's trainer. A fixture, because its import takes seconds."""
    pytest.importorskip("datasets", reason="needs TRL, which no extra installs")
    return pytest.importorskip("trl.trainer.grpo_trainer", reason="needs TRL, which no extra installs").GRPOTrainer  # type: ignore[no-any-return]


def trl_loss(trainer: type[Any], policy_BGT: Tensor, batch: RolloutBatch, settings: dict[str, object]) -> Tensor:
    """The loss of TRL for the log-probs of all completions, one row each."""
    args = SimpleNamespace(
        delta=settings.get("delta"),
        use_bias_correction_kl=False,
        steps_per_generation=1,
        sapo_temperature_pos=1.0,
        sapo_temperature_neg=1.05,
        vespo_k_pos=2.0,
        vespo_lambda_pos=3.0,
        vespo_k_neg=3.0,
        vespo_lambda_neg=2.0,
    )
    policy_NT, behavior_NT = (each.flatten(0, 1) for each in (policy_BGT, batch.behavior_logprobs_BGT))
    mask_NT = batch.mask_BGT.flatten(0, 1).to(policy_NT.dtype)
    own = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (policy_NT, torch.zeros_like(policy_NT), None),
        get_off_policy_mask=trainer.get_off_policy_mask,
        get_gamma_weights=trainer.get_gamma_weights,
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=settings.get("off_policy_mask_threshold"),
        importance_sampling_level=settings.get("importance_sampling_level", "token"),
        beta=0.0,
        loss_type=settings["loss_type"],
        epsilon_low=0.2,
        epsilon_high=settings.get("epsilon_high", 0.2),
        args=args,
        use_vllm=False,
        vllm_importance_sampling_correction=False,
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        max_completion_length=LIMIT,
        accelerator=SimpleNamespace(
            num_processes=1, gather=lambda each: each, reduce=lambda each, reduction: each, sync_gradients=True
        ),
        _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list)},
    )
    ids_NT = torch.zeros(mask_NT.shape, dtype=torch.long)
    inputs = {
        "prompt_ids": ids_NT[:, :1],
        "prompt_mask": mask_NT[:, :1],
        "completion_ids": ids_NT,
        "completion_mask": mask_NT,
        "advantages": batch.advantages_BG.flatten(),
        "old_per_token_logps": behavior_NT,
        "num_items_in_batch": mask_NT.sum(),
    }
    found: Tensor = trainer._compute_loss(own, None, inputs)
    return found


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("spread", [0.0, 0.4, 1.5])
def test_losses_equal_those_of_trl(trainer: type[Any], name: str, spread: float) -> None:
    options, settings = SAME[name]
    for seed in range(8):
        policy, batch = random_batch(seed, spread=spread, shape=(4, 6, 9))
        ours = build_loss(name, options=options, max_completion_tokens=LIMIT).loss(policy, batch).loss
        theirs = trl_loss(trainer, policy, batch, settings) / TIMES.get(name, 1)
        gradients = [torch.autograd.grad(loss, policy)[0] for loss in (ours, theirs)]
        relative, absolute = LESS_EXACT.get(name, (1e-9, 1e-12))
        for pair in (gradients, (ours, theirs)):
            torch.testing.assert_close(*pair, rtol=relative, atol=absolute)
