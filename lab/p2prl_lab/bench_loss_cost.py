"""Cost of every loss relative to its training step, on a 30M-parameter model.

    python -m p2prl_lab.bench_loss_cost --out docs/benchmarks/loss_cost.md

Times are CPU seconds of one thread, which depend less on load than wall-clock time. The step is forward, backward
and AdamW on a GPT-2 decoder; the loss is everything between the model's log-probs and the gradient with respect to
them: advantages, guards, weights, aggregation, the diagnostics of every staleness bucket, and the backward pass.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from p2prl.algorithms.loss_registry import BUILTIN_LOSSES, build_loss
from p2prl.learner.training.loss_guards import GuardConfig
from p2prl.learner.training.loss_pipeline import LossPipeline, LossPipelineConfig, Rollouts
from p2prl.learner.training.probation import ProbationConfig
from p2prl.models.logprobs.policy_logprobs import completion_logprobs
from p2prl_lab.progress_lines import say

GROUPS, SIZE, PROMPT, TOKENS = 4, 8, 16, 64
"""Groups, completions of each, tokens of a prompt and of a completion. A loss costs about the same for a larger batch,
while a step costs more: a small batch is the hardest case."""

BOUND = 0.03
"""Largest share of a step that a loss may cost."""

VOCABULARY = 8192


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """One row of the table."""

    name: str
    cpu_s: float
    share: float


def main() -> int:
    """Measure, print the table, write it to a file if asked to; exit 1 when a loss costs more than the bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3, help="training steps measured, after one to warm up")
    parser.add_argument("--repeats", type=int, default=10, help="times each loss is computed, after two to warm up")
    parser.add_argument("--out", type=Path, help="Markdown file to write")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = decoder()
    parameters = sum(p.numel() for p in model.parameters())
    say(f"training steps of {parameters:,} parameters on {GROUPS * SIZE} completions of {TOKENS} tokens")
    step_s = step_cost(model, arguments.steps)
    say(f"one step takes {step_s:.2f} CPU-seconds")
    costs = []
    for name, config in measured_losses().items():
        seconds = loss_cost(config, arguments.repeats)
        costs.append(Cost(name=name, cpu_s=seconds, share=seconds / step_s))
        say(f"{name}: {1000 * seconds:.1f} ms, {costs[-1].share:.2%}")
    text = table(costs, parameters, step_s)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n", encoding="utf-8")
    return int(any(cost.share > BOUND for cost in costs))


def decoder() -> GPT2LMHeadModel:
    """Width 512, eight layers."""
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=PROMPT + TOKENS,
        n_embd=512,
        n_layer=8,
        n_head=8,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config).eval()


def step_cost(model: GPT2LMHeadModel, steps: int) -> float:
    """Median CPU seconds of one step whose loss is a plain sum."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, foreach=False)
    prompts = torch.randint(0, VOCABULARY, (GROUPS * SIZE, PROMPT)).tolist()
    completions = torch.randint(0, VOCABULARY, (GROUPS * SIZE, TOKENS)).tolist()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        logprobs, _ = completion_logprobs(model, prompts, completions, 1.0)
        torch.autograd.backward(-logprobs.sum() / logprobs.numel())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return cpu_seconds(step, warm_up=1, repeats=steps)


def measured_losses() -> dict[str, LossPipelineConfig]:
    """Every loss as a run uses it, and the default with every guard."""
    found = {
        name: LossPipelineConfig(objective=build_loss(name, max_completion_tokens=TOKENS)) for name in BUILTIN_LOSSES
    }
    found["gepo_t with all guards and probation"] = LossPipelineConfig(
        objective=build_loss("gepo_t"),
        guards=GuardConfig(kl_brake=0.05, vcpo=True, second_moment=0.04, negative_tail=0.5),
        probation=ProbationConfig(probation_groups=4, loss="asympo"),
        probation_loss=build_loss("asympo"),
    )
    return found


def loss_cost(config: LossPipelineConfig, repeats: int) -> float:
    """Median CPU seconds from log-probs to their gradient, on ragged groups of four stalenesses."""
    policy, rollouts = batch()
    pipeline = LossPipeline(config)

    def compute() -> None:
        torch.autograd.grad(pipeline.estimate(policy, rollouts).loss, policy)

    return cpu_seconds(compute, warm_up=2, repeats=repeats)


def batch() -> tuple[Tensor, Rollouts]:
    """Log-probs and rollouts of one update."""
    shape = (GROUPS, SIZE, TOKENS)
    behavior = -2 * torch.rand(shape)
    lengths = torch.randint(TOKENS // 2, TOKENS + 1, shape[:2])
    lengths[0, 0] = TOKENS
    policy = (behavior + 0.1 * torch.randn(shape)).clamp(max=0.0).requires_grad_()
    return policy, Rollouts(
        behavior_logprobs_BGT=behavior,
        mask_BGT=torch.arange(TOKENS) < lengths.unsqueeze(-1),
        rewards_BG=torch.randint(0, 2, shape[:2]).float(),
        staleness_BG=torch.tensor([0, 3, 20, 100]).unsqueeze(1).expand(GROUPS, SIZE),
        trust_B=torch.tensor([1.0, 0.5, 1.0, 1.0]),
    )


def cpu_seconds(work: Callable[[], None], *, warm_up: int, repeats: int) -> float:
    """Median CPU seconds of this process."""
    taken = []
    for number in range(warm_up + repeats):
        began = time.process_time()
        work()
        if number >= warm_up:
            taken.append(time.process_time() - began)
    return statistics.median(taken)


def table(costs: list[Cost], parameters: int, step_s: float) -> str:
    """The Markdown page."""
    largest = max(costs, key=lambda cost: cost.share)
    lines = [
        "# Cost of the losses",
        "",
        "```",
        "python -m p2prl_lab.bench_loss_cost --out docs/benchmarks/loss_cost.md",
        "```",
        "",
        f"One training step of {parameters:,} parameters (GPT-2, width 512, eight layers) with {GROUPS * SIZE}",
        f"completions of {TOKENS} tokens takes {step_s:.2f} CPU-seconds of one thread. A loss is everything between",
        "log-probs and the gradient with respect to them, including the diagnostics of every staleness bucket.",
        "Medians. A larger batch or model makes the share smaller: a loss costs about the same, a step more.",
        "",
        f"The most expensive is `{largest.name}`: {largest.share:.2%} of the step; the limit is {BOUND:.0%}.",
        "",
        "| loss | ms | share of the step |",
        "|---|---|---|",
    ]
    return "\n".join([*lines, *(f"| `{c.name}` | {1000 * c.cpu_s:.1f} | {c.share:.2%} |" for c in costs)])


if __name__ == "__main__":
    sys.exit(main())
