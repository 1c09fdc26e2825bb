"""TOPR in a training loop that is not p2prl's: plain torch, stale rollouts, micro-batches.

    pip install ./packaging/p2prl-algorithms        # from a checkout; torch is its only dependency
    python examples/foreign_trainer.py

A tiny policy learns to write ascending digits. Its rollouts come from a copy that is up to 8 updates old, as from
samplers on other machines. Shape legend: B groups, G completions, T tokens, V vocabulary.
"""

from __future__ import annotations

import copy
from collections import deque

import torch
from torch import Tensor, nn

from p2prl.algorithms import RolloutBatch, build_loss, diagnose, microbatch

GROUPS, COMPLETIONS, TOKENS, VOCABULARY = 8, 8, 6, 10
UPDATES, DELAY = 120, 8
HALVES = (slice(0, COMPLETIONS // 2), slice(COMPLETIONS // 2, COMPLETIONS))


class Policy(nn.Module):
    """Next digit from the last digit and the position."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Embedding(VOCABULARY + 1, 32)
        self.place = nn.Embedding(TOKENS, 32)
        self.out = nn.Linear(32, VOCABULARY)

    def forward(self, inputs_BGT: Tensor) -> Tensor:
        """Log-probs (B, G, T, V) of the digit after each input."""
        places_T = torch.arange(inputs_BGT.shape[-1])
        return torch.log_softmax(self.out(torch.tanh(self.last(inputs_BGT) + self.place(places_T))), dim=-1)


def token_logprobs(policy: Policy, tokens_BGT: Tensor) -> Tensor:
    """Log-prob of each token under the policy, nats."""
    start_BG1 = torch.full_like(tokens_BGT[..., :1], VOCABULARY)
    logprobs_BGTV: Tensor = policy(torch.cat([start_BG1, tokens_BGT[..., :-1]], dim=-1))
    return logprobs_BGTV.gather(-1, tokens_BGT.unsqueeze(-1)).squeeze(-1)


@torch.no_grad()
def sample(policy: Policy) -> Tensor:
    """Completions (B, G, T) of the policy."""
    inputs = torch.full((GROUPS, COMPLETIONS, 1), VOCABULARY)
    for _ in range(TOKENS):
        last_BGV = policy(inputs)[..., -1, :].exp()
        drawn = torch.multinomial(last_BGV.flatten(0, 1), 1).view(GROUPS, COMPLETIONS, 1)
        inputs = torch.cat([inputs, drawn], dim=-1)
    return inputs[..., 1:]


def main(updates: int = UPDATES) -> tuple[float, float]:
    """Train, and return the mean reward of the first and of the last update."""
    torch.set_num_threads(1)  # tensors this small are slower on more threads
    torch.manual_seed(0)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=2e-2)
    objective = build_loss("topr", options={"negative_high": 0.25}, max_completion_tokens=TOKENS)  # as p2prl
    samplers = deque([copy.deepcopy(policy)], maxlen=DELAY + 1)
    rewards = []
    for update in range(updates):
        sampler = samplers[0]  # the oldest copy: as stale as a slow peer
        tokens_BGT = sample(sampler)
        rewards_BG = (tokens_BGT.diff(dim=-1) == 1).float().mean(dim=-1)
        with torch.no_grad():
            behavior_BGT = token_logprobs(sampler, tokens_BGT)
        batch = RolloutBatch(
            behavior_logprobs_BGT=behavior_BGT,
            mask_BGT=torch.ones_like(tokens_BGT, dtype=torch.bool),
            advantages_BG=objective.advantages(rewards_BG).advantages_BG,
            staleness_BG=torch.full((GROUPS, COMPLETIONS), len(samplers) - 1),
        )
        optimizer.zero_grad()
        # In parts, as on a device that cannot hold the batch. A few losses read all of a group at once.
        for rows in (slice(None),) if objective.spec.needs_whole_groups else HALVES:
            part = microbatch(batch, completions=rows)
            objective.loss(token_logprobs(policy, tokens_BGT[:, rows]), part).loss.backward()
        optimizer.step()
        samplers.append(copy.deepcopy(policy))
        rewards.append(rewards_BG.mean().item())
        if update % 20 == 0 or update == updates - 1:
            with torch.no_grad():
                logprobs_BGT = token_logprobs(policy, tokens_BGT)
                (bucket,) = diagnose(logprobs_BGT, batch, objective.loss(logprobs_BGT, batch))
            print(f"update {update:3}  reward {rewards[-1]:.2f}  KL {bucket.kl_k3:.4f}  ESS {bucket.ess_fraction:.2f}")
    return rewards[0], rewards[-1]


if __name__ == "__main__":
    main()
