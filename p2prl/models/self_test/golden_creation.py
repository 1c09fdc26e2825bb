"""Make the golden groups of a new run: in float32, which every shorter type is measured against, on the CPU.

They are tried at once with the transformers sampler in the run's own number type. A policy that magnifies rounding, so
that this sound engine fails, would condemn every volunteer: such a run ships none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec
import torch
from torch import Tensor

from p2prl.errors import IntegrityError, RemoteProtocolError
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.run_model import RunModel, read_run_model
from p2prl.models.seeded_draw.gumbel_noise import gumbel
from p2prl.models.self_test.golden_groups import (
    CANDIDATES,
    GOLDEN_FILE,
    MAX_GOLDEN_BYTES,
    Candidate,
    GoldenGroups,
    GoldenRow,
    Position,
)
from p2prl.models.self_test.golden_policy import MOST_BYTES, golden_weights, least_revision
from p2prl.models.self_test.self_test import SelfTestVerdict, self_test
from p2prl.models.weights.layout import WeightLayout
from p2prl.protocol.lora_spec import LoraSpec

ROWS, PROMPT_TOKENS, NEW_TOKENS = 12, 8, 16
"""Completions, and the tokens of each. 192 tokens show a noise of .001 logits in their log-probs, and take the time of
16 steps."""

_SEED_STEP = 0x1E3779B97F4A7C15
"""Odd and large, so that the seeds of all rows differ in every bit."""

_CPU = torch.device("cpu")


def golden_files(
    files: Mapping[str, bytes],
    layout: WeightLayout,
    *,
    dtype: str,
    temperature: float,
    lora: LoraSpec | None = None,
    on_progress: Callable[[float], None] = lambda _: None,
    on_notice: Callable[[str], None] = lambda _: None,
) -> dict[str, bytes]:
    """The golden groups of a run with these files that computes in `dtype`, as one more of them.

    Nothing where `make_golden` gives none, or the files are not a usable model, or this machine's own engine does not
    pass them, which `on_notice` is told. `on_progress` gets the share done, 0..1.
    """
    if layout.size_bytes > MOST_BYTES:
        return {}
    try:
        run = read_run_model(files, layout_digest=layout.digest, weight_bytes=layout.size_bytes, dtype=dtype, lora=lora)
    except (RemoteProtocolError, IntegrityError):  # the run's own checks tell why
        return {}
    on_progress(0.0)
    golden = make_golden(run, temperature=temperature)
    if golden is None:
        return {}
    on_progress(0.5)
    made = {GOLDEN_FILE: golden}
    if not _passes(replace(run, files={**files, **made}), dtype, temperature):
        on_notice(
            f"This run ships no self-test for volunteers: in a model of this shape the rounding of {dtype} alone makes "
            "known completions differ. Nothing else depends on it."
        )
        return {}
    on_progress(1.0)
    return made


def _passes(run: RunModel, dtype: str, temperature: float) -> bool:
    """Whether the transformers sampler passes the self-test of a run on this machine's CPU."""
    policy = PolicyModel(run.build(device=_CPU, dtype=dtype), run.layout)
    tested = self_test(run, TransformersSampler(policy), dtype=dtype, temperature=temperature)
    return tested is not None and tested.verdict is SelfTestVerdict.FITS


def make_golden(run: RunModel, *, temperature: float) -> bytes | None:
    """The file of a run, computed on this machine's CPU; None for a model that is too large or of an unusual kind."""
    vocabulary: int = run.skeleton.config.get_text_config().vocab_size
    if run.layout.size_bytes > MOST_BYTES or vocabulary < CANDIDATES:
        return None
    policy = PolicyModel(run.build(device=_CPU, dtype="float32"), run.layout)
    length = min(NEW_TOKENS, (policy.context or PROMPT_TOKENS + NEW_TOKENS) - PROMPT_TOKENS)
    if length < 1:
        return None
    revision = least_revision(run)
    try:
        policy.load(golden_weights(run, revision))
    except IntegrityError:  # weights of a shape that these values do not suit
        return None
    rows = _draw(policy, temperature, length)
    if not all(math.isfinite(position.size) for row in rows for position in row.positions):
        return None
    raw = msgspec.json.encode(GoldenGroups(policy.engine_class, temperature, rows, revision))
    return raw if len(raw) <= MAX_GOLDEN_BYTES else None


@torch.inference_mode()
def _draw(policy: PolicyModel, temperature: float, length: int) -> tuple[GoldenRow, ...]:
    """Sample with the seeded noise, with a cache as engines do."""
    vocabulary = policy.vocabulary
    index = torch.arange(ROWS * PROMPT_TOKENS).reshape(ROWS, PROMPT_TOKENS)
    prompts = (index * 7919 + 11) % vocabulary
    seeds = torch.tensor([(row + 1) * _SEED_STEP % (1 << 63) for row in range(ROWS)])
    found: list[list[Position]] = [[] for _ in range(ROWS)]
    cache, fed = policy.new_cache(), prompts
    for place in range(length):
        logits_NV = policy.forward(fed, cache=cache, keep=1)[:, 0].float()
        fed = _positions(logits_NV / temperature, seeds, place, found)
    return tuple(
        GoldenRow(tuple(prompt), int(seed), tuple(positions))
        for prompt, seed, positions in zip(prompts.tolist(), seeds.tolist(), found, strict=True)
    )


def _positions(scaled_NV: Tensor, seeds: Tensor, place: int, found: list[list[Position]]) -> Tensor:
    """Append one position to each row; the tokens drawn there, (N, 1)."""
    vocabulary = scaled_NV.shape[1]
    noisy_NV = scaled_NV + gumbel(seeds, torch.full((len(seeds), 1), place), vocabulary)[:, 0]
    best_NC = noisy_NV.topk(CANDIDATES, dim=1)
    logprobs_NV = scaled_NV.log_softmax(dim=1)
    margins = (best_NC.values[:, :1] - best_NC.values).tolist()
    logprobs = logprobs_NV.gather(1, best_NC.indices).tolist()
    sizes = scaled_NV.square().mean(dim=1).sqrt().tolist()
    for row, tokens in enumerate(best_NC.indices.tolist()):
        triples = zip(tokens, margins[row], logprobs[row], strict=True)
        made = tuple(Candidate(token, round(m, 6), min(0.0, round(p, 6))) for token, m, p in triples)
        found[row].append(Position(round(sizes[row], 6), made))
    return best_NC.indices[:, :1]
