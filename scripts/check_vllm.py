"""Check the vLLM sampler on this machine: exactness, speed beside bare vLLM, and swaps of the policy under load.

    python -m scripts.check_vllm --model 29M --out docs/benchmarks/vllm.md

Exactness: every token replays with the transformers scorer. Speed: tokens per CPU second (per second on a GPU) of the
sampler and of vLLM's own sampling, in turns in one process. Swaps: policies change between steps while completions are
in flight; every completion is replayed with the policies that its spans name. The model's weights are random, and its
logits are spread as widely as a trained model's, so that a wrong policy shows.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from p2prl.models.device import choose_device
from p2prl.models.policy_model import PolicyModel
from p2prl.models.pretrained import LoadedModel
from p2prl.models.run_files import export_run_files
from p2prl.models.run_model import RunModel, read_run_model
from p2prl.models.sampler_port import Generation, GenerationRequest
from p2prl.models.tiny_models import tiny_model
from p2prl.models.transformers_scorer import TransformersScorer
from p2prl.models.vllm_engine import VllmOptions
from p2prl.models.vllm_library import import_vllm
from p2prl.models.vllm_sampler import VllmSampler
from p2prl.models.weight_layout import flatten, layout_of
from p2prl.testing.mixed_replay import differing_tokens

SHAPES = {
    "1M": {"vocab_size": 4_096, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2},
    "29M": {"vocab_size": 151_936, "hidden_size": 192, "num_hidden_layers": 2, "num_attention_heads": 3},
    "123M": {"vocab_size": 151_936, "hidden_size": 640, "num_hidden_layers": 6, "num_attention_heads": 10},
    "0.5B": {"vocab_size": 151_936, "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14},
}
"""Qwen2 models with tied embeddings, by their number of weights."""

SPREAD = 5.0
"""Standard deviation of the logits."""

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
    models: dict[int, Any]
    weights: dict[int, bytes]


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
    torch.set_num_threads(1)
    device = choose_device(arguments.device)
    policies = make_policies(arguments.model, arguments.dtype, count=3 if arguments.only in (None, "swaps") else 1)
    memory = CACHE_BYTES + 8 * policies.run.layout.parameters  # float32 weights, twice
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory * 2 // 5
    options = VllmOptions(memory_bytes=memory, context=CONTEXT)
    sampler = VllmSampler(policies.run, device=device, dtype=arguments.dtype, options=options)
    bare = BareVllm(policies.run, device, arguments.dtype) if arguments.only in (None, "speed") else None
    ok = True
    lines: list[str] = []
    checks: dict[str, Callable[[], tuple[bool, str]]] = {
        "exact": lambda: check_exact(sampler, policies, arguments.tokens),
        "swaps": lambda: check_swaps(sampler, policies, arguments.swaps),
    }
    if bare is not None:
        batches = [int(batch) for batch in arguments.batches.split(",")]
        checks["speed"] = lambda: check_speed(
            sampler, bare, policies, batches=batches, repeats=arguments.repeats, new=arguments.new
        )
    for name, check in checks.items():
        if arguments.only in (None, name):
            passed, text = check()
            print(text, flush=True)
            ok, lines = ok and passed, [*lines, text]
    if arguments.out:
        command = "python -m scripts.check_vllm " + " ".join(sys.argv[1:])
        arguments.out.write_text(f"# vLLM sampler\n\n`{command}`\n\n" + "\n\n".join(lines) + "\n")
    return 0 if ok else 1


def make_policies(name: str, dtype: str, *, count: int) -> Policies:
    """Up to three policies of one run: random weights, others, and the first ones a little changed."""
    shape = dict(SHAPES[name])
    heads = shape["num_attention_heads"]
    grown = {"intermediate_size": 3 * shape["hidden_size"], "num_key_value_heads": 2 if heads % 2 == 0 else 1}
    config = Qwen2Config(tie_word_embeddings=True, max_position_embeddings=4_096, **grown, **shape)
    models = {i: _random_model(config, seed=seed) for i, seed in list(enumerate((0, 1, 0)))[:count]}
    with torch.no_grad():
        for parameter in models[2].parameters() if count > 2 else ():
            parameter.mul_(1 + 0.02 * torch.randn_like(parameter))
    layout = layout_of(models[0], dtype)
    files = export_run_files(LoadedModel(model=models[0], tokenizer=tiny_model().tokenizer))
    run = read_run_model(files, layout_digest=layout.digest, weight_bytes=layout.size_bytes, dtype=dtype)
    return Policies(run, models, {i: bytes(flatten(model, layout)) for i, model in models.items()})


def _random_model(config: Any, *, seed: int) -> Any:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa").eval()
    embedding = model.get_input_embeddings().weight
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1 and parameter is not embedding:
                parameter.mul_(8.0)  # or the residual stream stays the embedding, and a tied head repeats each token
        embedding.mul_(SPREAD / model(input_ids=torch.arange(16)[None]).logits.std())
    return model


def requests(count: int, *, new: int, first_seed: int) -> list[GenerationRequest]:
    """Requests with prompts of 8 to 103 tokens, at two temperatures."""
    return [
        GenerationRequest(
            prompt_ids=tuple((seed * 7_919 + 31 * j) % PROMPT_WORDS for j in range(8 + 37 * seed % 96)),
            seed=seed * 0x9E37_79B9_7F4A_7C15 % 2**63,
            max_new_tokens=new,
            temperature=1.0 if seed % 2 else 0.6,
            stop_ids=frozenset({STOP}),
        )
        for seed in range(first_seed, first_seed + count)
    ]


def check_exact(sampler: VllmSampler, policies: Policies, tokens: int) -> tuple[bool, str]:
    """Sample `tokens` tokens, and replay each with the transformers scorer."""
    scorer = TransformersScorer(PolicyModel(policies.models[0], policies.run.layout))
    sampler.swap(sampler.stage(policies.weights[0], 0))
    count = differing = 0
    worst_margin = worst_logprob = 0.0
    for first in itertools.count(1, 32):
        asked = requests(32, new=256, first_seed=first)
        made = sample(sampler, asked)
        for replayed, generation in zip(scorer.replay(asked, [a.token_ids for a in made]), made, strict=True):
            count += len(generation.token_ids)
            differing += sum(margin > 0 for margin in replayed.margins)
            worst_margin = max(worst_margin, *replayed.margins)
            changes = (abs(a - b) for a, b in zip(replayed.logprobs, generation.logprobs, strict=True))
            worst_logprob = max(worst_logprob, *changes)
        if count >= tokens:
            break
    text = (
        f"Exactness: {differing} of {count:,} tokens differ from the replay (largest margin {worst_margin:.1e}); "
        f"log-probs differ by at most {worst_logprob:.1e}."
    )
    exact = sampler.engine_class.dtype == "float32"
    return differing == 0 or not exact, text


def sample(sampler: VllmSampler, asked: list[GenerationRequest]) -> list[Generation]:
    """Completions of requests, in their order."""
    tickets = sampler.submit(asked)
    ended: dict[int, Generation] = {}
    while sampler.in_flight:
        ended.update(sampler.step().ended)
    return [ended[ticket] for ticket in tickets]


class BareVllm:
    """vLLM with its own sampling, otherwise set up like the sampler's engine.

    Never closed: closing an engine ends the process group that all engines of a process use.
    """

    def __init__(self, run: RunModel, device: torch.device, dtype: str) -> None:
        vllm = import_vllm()
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        self._params = vllm.SamplingParams
        self._names = itertools.count()
        settings: dict[str, Any] = {"gpu_memory_utilization": 0.4}
        if device.type == "cpu":
            settings = {"enforce_eager": True, "kv_cache_memory_bytes": CACHE_BYTES, "block_size": 32}
        with TemporaryDirectory() as directory:
            (Path(directory) / "config.json").write_text(json.dumps(run.settings()))
            settings |= {"model": directory, "load_format": "dummy", "skip_tokenizer_init": True, "dtype": dtype}
            arguments = EngineArgs(max_model_len=CONTEXT, max_num_seqs=256, disable_log_stats=True, **settings)
            self._engine: Any = LLMEngine.from_engine_args(arguments)

    def run(self, asked: list[GenerationRequest], *, logprobs: int | None) -> int:
        """Sample as many tokens as asked for."""
        for request in asked:
            params = self._params(
                temperature=request.temperature,
                max_tokens=request.max_new_tokens,
                ignore_eos=True,
                detokenize=False,
                logprobs=logprobs,
            )
            self._engine.add_request(str(next(self._names)), {"prompt_token_ids": list(request.prompt_ids)}, params)
        tokens = 0
        while self._engine.has_unfinished_requests():
            tokens += sum(len(output.outputs[0].token_ids) for output in self._engine.step() if output.finished)
        return tokens


def check_speed(
    sampler: VllmSampler, bare: BareVllm, policies: Policies, *, batches: list[int], repeats: int, new: int
) -> tuple[bool, str]:
    """Tokens per second of the sampler and of bare vLLM, in turns."""
    sampler.swap(sampler.stage(policies.weights[0], 0))
    clock = time.process_time if sampler.engine_class.device == "cpu" else time.perf_counter
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
                    tokens = bare.run(asked, logprobs=0 if name == "with log-probs" else None)
                if repeat:  # the first warms up
                    rates[name].append(tokens / (clock() - begun))
        ours, alone, scored = (statistics.median(values) for values in rates.values())
        ok = ok and ours >= ENOUGH * alone
        lines.append(
            f"| {batch} | {ours:,.0f} | {alone:,.0f} | {ours / alone:.2f} | {scored:,.0f} | {ours / scored:.2f} |"
        )
    return ok, "\n".join(lines)


def check_swaps(sampler: VllmSampler, policies: Policies, swaps: int) -> tuple[bool, str]:
    """Swap policies every few steps while completions are in flight, and replay every completion by its spans."""
    asked = requests(4 * swaps, new=96, first_seed=1)
    sampler.swap(sampler.stage(policies.weights[0], 0))
    waiting = dict(zip(sampler.submit(asked), asked, strict=True))
    ended: list[tuple[GenerationRequest, Generation]] = []
    seconds: list[float] = []
    in_flight = []
    for version in itertools.count(1):
        for _ in range(1 + version % 7):
            ended += [(waiting.pop(ticket), made) for ticket, made in sampler.step().ended]
        if version > swaps or not waiting:
            break
        staged = sampler.stage(policies.weights[version % len(policies.weights)], version)
        in_flight.append(sampler.in_flight)
        begun = time.process_time()
        sampler.swap(staged)
        seconds.append(time.process_time() - begun)
    while sampler.in_flight:
        ended += [(waiting.pop(ticket), made) for ticket, made in sampler.step().ended]
    by_version = {version: policies.models[version % len(policies.models)] for version in range(version + 1)}
    tokens = sum(len(made.token_ids) for _, made in ended)
    differing = sum(differing_tokens(by_version, request, made) for request, made in ended)
    mixed = sum(len(made.spans) > 1 for _, made in ended)
    text = (
        f"Swaps: {len(seconds)} with {min(in_flight)} to {max(in_flight)} completions in flight, every known answer "
        f"right, {statistics.median(seconds):.2f} CPU seconds each; {differing} of {tokens:,} tokens of {len(ended)} "
        f"completions ({mixed} of several policies) differ from a replay by their spans."
    )
    return len(seconds) == swaps and mixed > 0 and differing == 0, text


if __name__ == "__main__":
    sys.exit(main())
