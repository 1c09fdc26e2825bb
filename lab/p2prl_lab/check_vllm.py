"""Check the vLLM sampler on this machine: exactness, speed beside bare vLLM, and swaps of the policy under load.

    python -m p2prl_lab.check_vllm --model 29M --out docs/benchmarks/vllm.md

Exactness: completions are replayed from the same weight bytes by the transformers scorer, on the same device, and
judged as a learner does; in float32 no token may differ. Speed: tokens per CPU second (per second on a GPU) of the
sampler and of vLLM's own sampling, in turns in one process. Swaps: policies change between steps while completions are
in flight; every completion is judged by the policies that its spans name. The model's weights are random, of gain 1,
and its logits are spread as widely as a trained model's, so that a wrong policy shows.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import Qwen2Config

from p2prl.bench.engine.bare_vllm import BareVllm
from p2prl.models.base_model.pretrained import LoadedModel
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.scorer import TransformersScorer
from p2prl.models.engines.vllm.engine import VllmOptions
from p2prl.models.engines.vllm.sampler import VllmSampler
from p2prl.models.hardware.device_choice import choose_device
from p2prl.models.run_files.export import export_run_files
from p2prl.models.run_model import RunModel, read_run_model
from p2prl.models.sampler_port import Generation, GenerationRequest
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.weights.layout import flatten, layout_of
from p2prl_lab.testing.judged_groups import GROUP, judge, replayed
from p2prl_lab.testing.mixed_replay import mixed_scores
from p2prl_lab.testing.spread_models import spread_model

SHAPES = {
    "1M": {"vocab_size": 4_096, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2},
    "29M": {"vocab_size": 151_936, "hidden_size": 192, "num_hidden_layers": 2, "num_attention_heads": 3},
    "123M": {"vocab_size": 151_936, "hidden_size": 640, "num_hidden_layers": 6, "num_attention_heads": 10},
    "0.5B": {"vocab_size": 151_936, "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14},
}
"""Qwen2 models with tied embeddings, by their number of weights."""

ENOUGH = 0.95
"""Smallest share of bare vLLM's speed."""

STOP = 0
CONTEXT = 2_048
CACHE_BYTES = 1 << 28
PROMPT_WORDS = 4_096


@dataclass(frozen=True, slots=True)
class Policies:
    """A run, and some policies for it."""

    run: RunModel
    dtype: str
    weights: dict[int, bytes]

    def held(self, policy: int, device: torch.device) -> PolicyModel:
        """A policy as its bytes say, in the run's type."""
        model = PolicyModel(self.run.build(device=device, dtype=self.dtype), self.run.layout)
        model.load(self.weights[policy])
        return model


def main() -> int:
    """Run the checks, print the results, and exit 1 when one fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="29M")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--tokens", type=int, default=20_000, help="tokens replayed for exactness")
    parser.add_argument("--batches", default="8,16,32", help="completions decoded at once, for speed")
    parser.add_argument("--new", type=int, default=64, help="tokens of a completion, for speed")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--swaps", type=int, default=50)
    parser.add_argument("--only", choices=("exact", "speed", "swaps"), help="run one check")
    parser.add_argument("--out", type=Path, help="Markdown file to write")
    arguments = parser.parse_args()
    device = choose_device(arguments.device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    policies = make_policies(arguments.model, arguments.dtype, count=3 if arguments.only in (None, "swaps") else 1)
    memory = CACHE_BYTES + 8 * policies.run.layout.parameters  # float32 weights, twice
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory * 2 // 5
    options = VllmOptions(memory_bytes=memory, context=CONTEXT)
    sampler = VllmSampler(policies.run, device=device, dtype=arguments.dtype, options=options)
    bare = (
        BareVllm(policies.run, device, arguments.dtype, context=CONTEXT) if arguments.only in (None, "speed") else None
    )
    ok = True
    lines: list[str] = []
    checks: dict[str, Callable[[], tuple[bool, str]]] = {
        "exact": lambda: check_exact(sampler, policies, arguments.tokens, device),
        "swaps": lambda: check_swaps(sampler, policies, arguments.swaps, device),
    }
    if bare is not None:
        batches = [int(batch) for batch in arguments.batches.split(",")]
        checks["speed"] = lambda: check_speed(
            sampler, bare, policies, device, batches=batches, repeats=arguments.repeats, new=arguments.new
        )
    for name, check in checks.items():
        if arguments.only in (None, name):
            passed, text = check()
            print(text, flush=True)
            ok, lines = ok and passed, [*lines, text]
    if arguments.out:
        command = "python -m p2prl_lab.check_vllm " + " ".join(sys.argv[1:])
        arguments.out.write_text(f"# vLLM sampler\n\n`{command}`\n\n" + "\n\n".join(lines) + "\n")
    return 0 if ok else 1


def make_policies(name: str, dtype: str, *, count: int) -> Policies:
    """Up to three policies of one run: random weights, others, and the first ones a little changed."""
    shape = dict(SHAPES[name])
    heads = shape["num_attention_heads"]
    grown = {"intermediate_size": 3 * shape["hidden_size"], "num_key_value_heads": 2 if heads % 2 == 0 else 1}
    config = Qwen2Config(tie_word_embeddings=True, max_position_embeddings=4_096, **grown, **shape)
    models = {i: spread_model(config, seed=seed) for i, seed in list(enumerate((0, 1, 0)))[:count]}
    with torch.no_grad():
        for parameter in models[2].parameters() if count > 2 else ():
            parameter.mul_(1 + 0.02 * torch.randn_like(parameter))
    layout = layout_of(models[0], dtype)
    files = export_run_files(LoadedModel(model=models[0], tokenizer=tiny_model().tokenizer))
    run = read_run_model(files, layout_digest=layout.digest, weight_bytes=layout.size_bytes, dtype=dtype)
    return Policies(run, dtype, {i: bytes(flatten(model, layout)) for i, model in models.items()})


def requests(count: int, *, new: int, first_seed: int) -> list[GenerationRequest]:
    """Requests with prompts of 8 to 103 tokens, at a temperature a group."""
    return [
        GenerationRequest(
            prompt_ids=tuple((seed * 7_919 + 31 * j) % PROMPT_WORDS for j in range(8 + 37 * seed % 96)),
            seed=seed * 0x9E37_79B9_7F4A_7C15 % 2**63,
            max_new_tokens=new,
            temperature=1.0 if (seed - first_seed) // GROUP % 2 else 0.6,
            stop_ids=frozenset({STOP}),
        )
        for seed in range(first_seed, first_seed + count)
    ]


def check_exact(sampler: VllmSampler, policies: Policies, tokens: int, device: torch.device) -> tuple[bool, str]:
    """Sample `tokens` tokens, and judge them by the transformers scorer."""
    scorer = TransformersScorer(policies.held(0, device))
    sampler.swap(sampler.stage(policies.weights[0], 0))
    asked, rows = [], []
    for first in itertools.count(1, 32):
        more = requests(32, new=256, first_seed=first)
        asked += more
        rows += replayed(scorer, more, sample(sampler, more))
        if sum(len(row.margins) for row in rows) >= tokens:
            break
    result = judge(rows, asked, dtype=policies.dtype, layers=scorer.layers)
    passed = not result.rejected and (result.differing == 0 or policies.dtype != "float32")
    return passed, f"Exactness: {result}"


def sample(sampler: VllmSampler, asked: list[GenerationRequest]) -> list[Generation]:
    """Completions of requests, in their order."""
    tickets = sampler.submit(asked)
    ended: dict[int, Generation] = {}
    while sampler.in_flight:
        ended.update(sampler.step().ended)
    return [ended[ticket] for ticket in tickets]


def check_speed(
    sampler: VllmSampler,
    bare: BareVllm,
    policies: Policies,
    device: torch.device,
    *,
    batches: list[int],
    repeats: int,
    new: int,
) -> tuple[bool, str]:
    """Tokens per second of the sampler and of bare vLLM, in turns."""
    sampler.swap(sampler.stage(policies.weights[0], 0))
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    unit = "CPU second" if clock is time.process_time else "second"
    lines = [
        f"| batch | tokens per {unit} | bare vLLM | of bare | bare with log-probs | of that |",
        "|--:|--:|--:|--:|--:|--:|",
    ]
    ok = True
    for batch in batches:
        rates: dict[str, list[float]] = {"sampler": [], "bare": [], "with log-probs": []}
        for repeat in range(repeats + 1):
            asked = [
                dataclasses.replace(request, stop_ids=frozenset())
                for request in requests(batch, new=new, first_seed=1 + repeat * batch)
            ]
            for name in rates:
                begun = clock()
                if name == "sampler":
                    tokens = sum(len(made.token_ids) for made in sample(sampler, asked))
                else:
                    tokens = bare.sample(asked, logprobs=0 if name == "with log-probs" else None)
                if repeat:  # the first warms up
                    rates[name].append(tokens / (clock() - begun))
        ours, alone, scored = (statistics.median(values) for values in rates.values())
        ok = ok and ours >= ENOUGH * alone
        lines.append(
            f"| {batch} | {ours:,.0f} | {alone:,.0f} | {ours / alone:.2f} | {scored:,.0f} | {ours / scored:.2f} |"
        )
    return ok, "\n".join(lines)


def check_swaps(sampler: VllmSampler, policies: Policies, swaps: int, device: torch.device) -> tuple[bool, str]:
    """Swap policies every few steps while completions are in flight, and judge every completion by its spans."""
    asked = requests(GROUP * -(-4 * swaps // GROUP), new=96, first_seed=1)
    sampler.swap(sampler.stage(policies.weights[0], 0))
    waiting = sampler.submit(asked)
    ended: dict[int, Generation] = {}
    seconds: list[float] = []
    in_flight = []
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    for version in itertools.count(1):
        for _ in range(1 + version % 7):
            ended.update(sampler.step().ended)
        if version > swaps or not sampler.in_flight:
            break
        staged = sampler.stage(policies.weights[version % len(policies.weights)], version)
        in_flight.append(sampler.in_flight)
        begun = clock()
        sampler.swap(staged)
        seconds.append(clock() - begun)
    while sampler.in_flight:
        ended.update(sampler.step().ended)
    made = [ended[ticket] for ticket in waiting]
    held = {policy: policies.held(policy, device).model for policy in policies.weights}
    by_version = {version: held[version % len(held)] for version in range(len(seconds) + 1)}
    rows = [mixed_scores(by_version, *pair) for pair in zip(asked, made, strict=True)]
    layers = held[0].config.num_hidden_layers
    result = judge(rows, asked, dtype=policies.dtype, layers=layers)
    mixed = sum(len(each.spans) > 1 for each in made)
    text = (
        f"Swaps: {len(seconds)} with {min(in_flight)} to {max(in_flight)} completions in flight, every known answer "
        f"right, {statistics.median(seconds):.2f} s each; {mixed} of {len(made)} completions of several policies. "
        f"{result}"
    )
    passed = not result.rejected and (result.differing == 0 or policies.dtype != "float32")
    return len(seconds) == swaps and mixed > 0 and passed, text


if __name__ == "__main__":
    sys.exit(main())
