"""Losses by name: those of p2prl, then those of installed packages.

A package adds a loss through the entry-point group `p2prl.losses`. A built-in loss needs its own file, which ends with
its `LossSpec`, and one line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from p2prl.algorithms.advantages import AdvantageConfig
from p2prl.algorithms.aggregation import AggregationConfig
from p2prl.algorithms.loss_spec import LossSpec
from p2prl.algorithms.objective import Objective, build_objective
from p2prl.errors import ConfigError
from p2prl.plugins import Registry

BUILTIN_LOSSES: Mapping[str, str] = MappingProxyType(
    {
        "grpo": "p2prl.algorithms.grpo:GRPO",
        "dr_grpo": "p2prl.algorithms.grpo:DR_GRPO",
        "dapo": "p2prl.algorithms.grpo:DAPO",
        "bnpo": "p2prl.algorithms.grpo:BNPO",
        "two_sided": "p2prl.algorithms.grpo:TWO_SIDED",
        "gspo": "p2prl.algorithms.gspo:GSPO",
        "luspo": "p2prl.algorithms.gspo:LUSPO",
        "gmpo": "p2prl.algorithms.gmpo:GMPO",
        "sapo": "p2prl.algorithms.sapo:SAPO",
        "gepo": "p2prl.algorithms.gepo:GEPO",
        "gepo_paper": "p2prl.algorithms.gepo:GEPO_PAPER",
        "gepo_plus": "p2prl.algorithms.gepo:GEPO_PLUS",
        "eqp": "p2prl.algorithms.gepo:EQP",
        "gepo_t": "p2prl.algorithms.gepo_tapered:GEPO_T",
        "gex": "p2prl.algorithms.gepo_tapered:GEX",
        "reinforce": "p2prl.algorithms.truncated_losses:REINFORCE",
        "tis": "p2prl.algorithms.truncated_losses:TIS",
        "normalized_tis": "p2prl.algorithms.truncated_losses:NORMALIZED_TIS",
        "cispo": "p2prl.algorithms.truncated_losses:CISPO",
        "topr": "p2prl.algorithms.topr:TOPR",
        "seq_mis": "p2prl.algorithms.truncated_losses:SEQ_MIS",
        "vespo": "p2prl.algorithms.vespo:VESPO",
        "icepop": "p2prl.algorithms.masked_losses:ICEPOP",
        "m2po": "p2prl.algorithms.m2po:M2PO",
        "m2po_clip": "p2prl.algorithms.m2po:M2PO_CLIP",
        "decoupled_ppo": "p2prl.algorithms.decoupled_ppo:DECOUPLED_PPO",
        "a3po": "p2prl.algorithms.decoupled_ppo:A3PO",
        "opsm": "p2prl.algorithms.masked_losses:OPSM",
        "dppo": "p2prl.algorithms.masked_losses:DPPO",
        "ipo": "p2prl.algorithms.masked_losses:IPO",
        "clip_cov": "p2prl.algorithms.covariance_losses:CLIP_COV",
        "kl_cov": "p2prl.algorithms.covariance_losses:KL_COV",
        "ctpo": "p2prl.algorithms.prefix_losses:CTPO",
        "minpro": "p2prl.algorithms.prefix_losses:MINPRO",
        "mu_grpo": "p2prl.algorithms.prefix_losses:MU_GRPO",
        "oapl": "p2prl.algorithms.oapl:OAPL",
        "asympo": "p2prl.algorithms.logprob_free:ASYMPO",
        "asymre": "p2prl.algorithms.logprob_free:ASYMRE",
        "ppo": "p2prl.algorithms.ppo:PPO",
        "dpo": "p2prl.algorithms.dpo:DPO",
    }
)
"""Every loss p2prl ships, by the name run.toml uses."""

LOSSES: Registry[LossSpec] = Registry("p2prl.losses", kind="loss", builtin=BUILTIN_LOSSES, expected=LossSpec)
"""Built-in and installed losses by name; `get` imports one when it is asked for."""


def loss_by_name(name: str) -> LossSpec:
    """The loss of this name. `ConfigError` when none is installed, or when its own name differs."""
    spec = LOSSES.get(name)
    if spec.name != name:
        raise ConfigError(
            f"the loss registered as {name!r} has the name {spec.name[:64]!r}",
            remedy="Register a loss under its own name, which metrics and checkpoints use.",
        )
    return spec


def build_loss(
    name: str,
    *,
    options: Mapping[str, object] | None = None,
    advantage: AdvantageConfig | None = None,
    aggregation: AggregationConfig | None = None,
    max_completion_tokens: int | None = None,
) -> Objective:
    """The objective called `name`; see `build_objective`. Raises ConfigError for an unknown name too."""
    return build_objective(
        loss_by_name(name),
        options=options,
        advantage=advantage,
        aggregation=aggregation,
        max_completion_tokens=max_completion_tokens,
    )
