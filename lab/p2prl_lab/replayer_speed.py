"""Speed of replays by number of replayers, with the product's own, beside a scorer in this process.

    python -m p2prl_lab.replayer_speed [--model 29m] [--replayers 1,2,3] [--json]

A batch is groups of eight completions that share a prompt, as a learner replays it; its policy is loaded once. Each
replayer has one CPU thread. Rows are taken in turns, so that a busy moment of the machine meets all of them; medians.
`speedup` is by one replayer.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from p2prl.bench.random_models import SHAPES, VOCABULARY, random_model
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.scorer import TransformersScorer
from p2prl.models.hardware.device_choice import use_threads
from p2prl.models.sampler_port import GenerationRequest
from p2prl.models.scorer_port import Scorer
from p2prl.models.small_models.tiny_models import character_tokenizer
from p2prl.models.weights.layout import layout_of, weight_blocks
from p2prl.replayers import messages
from p2prl.replayers.replayer_processes import ReplayerProcesses

_GROUP_SIZE = 8
_IN_THIS_PROCESS = 0


def main() -> int:
    """Measure, and print a row for each number of replayers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(SHAPES), default="29m")
    parser.add_argument("--replayers", default="1,2", help="numbers of them, comma-separated")
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=32, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of a completion")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    arguments = parser.parse_args()
    use_threads(1)
    rows = _measured(arguments)
    if arguments.json:
        print(json.dumps({"rows": rows, "seed": arguments.seed}))
        return 0
    print("| replayers | groups/s | speedup |\n|---|--:|--:|")
    for row in rows:
        print(f"| {row['replayers'] or 'none'} | {row['groups_per_s']:.1f} | {row['speedup']:.2f} |")
    return 0


def _measured(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    counts = [int(count) for count in arguments.replayers.split(",")]
    with tempfile.TemporaryDirectory(prefix="p2prl-replayers-") as folder, ExitStack() as started:
        scorers = _scorers(arguments, counts, Path(folder), started)
        batch = _batch(arguments)
        seconds: dict[int, list[float]] = {count: [] for count in scorers}
        for repeat in range(arguments.repeats + 1):
            for count, scorer in scorers.items():
                began = time.monotonic()
                scorer.replay(*batch)
                if repeat:  # the first one warms up
                    seconds[count].append(time.monotonic() - began)
    of_one = statistics.median(seconds[min(counts)])
    return [
        {
            "model": arguments.model,
            "replayers": count,
            "groups_per_s": arguments.groups / statistics.median(found),
            "speedup": of_one / statistics.median(found),
        }
        for count, found in seconds.items()
    ]


def _scorers(arguments: argparse.Namespace, counts: list[int], folder: Path, started: ExitStack) -> dict[int, Scorer]:
    """Scorers by number of replayers, all with the same policy; the first is in this process."""
    model = random_model(arguments.model, seed=arguments.seed)
    model.save_pretrained(folder)
    character_tokenizer("01").save_pretrained(folder)  # replayers load a model as a learner does
    layout = layout_of(model, "float32")
    weights = b"".join(block.tobytes() for block in weight_blocks(model, layout))
    scorers: dict[int, Scorer] = {_IN_THIS_PROCESS: TransformersScorer(PolicyModel(model, layout))}
    for count in counts:
        replayers = ReplayerProcesses(
            messages.Model(
                first=str(folder), lora=None, dtype="float32", published="float32", weight_bytes=layout.size_bytes
            ),
            devices=["cpu"] * count,
            threads=1,
            folder=folder,
            on_notice=lambda notice: print(notice, file=sys.stderr),
        )
        started.callback(replayers.close)
        replayers.load_weights(weights)
        scorers[count] = replayers
    return scorers


def _batch(arguments: argparse.Namespace) -> tuple[list[GenerationRequest], list[list[int]]]:
    generator = torch.Generator().manual_seed(arguments.seed)

    def drawn(count: int) -> list[int]:
        return [int(token) for token in torch.randint(0, VOCABULARY, (count,), generator=generator)]

    requests: list[GenerationRequest] = []
    completions = []
    for _ in range(arguments.groups):
        prompt = tuple(drawn(arguments.prompt))
        for _ in range(_GROUP_SIZE):
            completions.append(drawn(arguments.tokens))
            requests.append(
                GenerationRequest(
                    prompt_ids=prompt,
                    seed=len(requests),
                    max_new_tokens=arguments.tokens,
                    temperature=1.0,
                    stop_ids=frozenset(),
                )
            )
    return requests, completions


if __name__ == "__main__":
    sys.exit(main())
