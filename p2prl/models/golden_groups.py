"""Golden groups: known completions of the golden policy with the learner's numbers, to test an engine against at join.

`p2prl init` computes them once, in float32, which every shorter type is measured against, and puts them among the
run's files (`golden.json`). They are of a policy that every machine makes for itself (`golden_policy`), in the shape of
the run's model: so a volunteer learns before it downloads any weights, and at whatever version it joins, whether its
work would be accepted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
import torch
from torch import Tensor

from p2prl.errors import IntegrityError, RemoteProtocolError
from p2prl.models.golden_policy import MOST_BYTES, policy_weights
from p2prl.models.gumbel_noise import gumbel
from p2prl.models.policy_model import PolicyModel
from p2prl.models.run_model import RunModel, read_run_model
from p2prl.models.weight_layout import WeightLayout
from p2prl.protocol.lora_spec import LoraSpec
from p2prl.protocol.rollout_group import EngineClass

GOLDEN_FILE = "golden.json"

MAX_GOLDEN_BYTES = 64 * 1024
"""Most bytes of the file; it has about 15 kB."""

ROWS, PROMPT_TOKENS, NEW_TOKENS = 12, 8, 16
"""Completions, and the tokens of each. 192 tokens show a noise of .001 logits in their log-probs, and take the time of
16 steps."""

CANDIDATES = 4
"""Tokens known of each position: rounding mistakes one of the first few for the best, never another."""

_MOST_ROWS, _MOST_TOKENS = 64, 64

_SEED_STEP = 0x1E3779B97F4A7C15
"""Odd and large, so that the seeds of all rows differ in every bit."""


class Candidate(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One of the best tokens of a position."""

    token: int
    margin: float
    """Nats its noisy logit lies below the best."""
    logprob: float


class Position(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A token of a golden completion: the first candidate, of margin 0."""

    size: float
    """Root mean square of the logits, at the temperature."""
    candidates: tuple[Candidate, ...]


class GoldenRow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One golden completion."""

    prompt: tuple[int, ...]
    seed: int
    positions: tuple[Position, ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        """The completion."""
        return tuple(position.candidates[0].token for position in self.positions)


class GoldenGroups(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file."""

    engine: EngineClass
    """The class that computed the numbers."""
    temperature: float
    rows: tuple[GoldenRow, ...]


def make_golden(run: RunModel, *, temperature: float) -> bytes | None:
    """The file of a run, computed on this machine's CPU; None for a model that is too large or of an unusual kind."""
    vocabulary: int = run.skeleton.config.get_text_config().vocab_size
    if run.layout.size_bytes > MOST_BYTES or vocabulary < CANDIDATES:
        return None
    policy = PolicyModel(run.build(device=torch.device("cpu"), dtype="float32"), run.layout)
    length = min(NEW_TOKENS, (policy.context or PROMPT_TOKENS + NEW_TOKENS) - PROMPT_TOKENS)
    if length < 1:
        return None
    try:
        policy.load(policy_weights(run.layout, vocabulary))
    except IntegrityError:  # weights of a shape that these values do not suit
        return None
    rows = _draw(policy, temperature, length)
    if not all(math.isfinite(position.size) for row in rows for position in row.positions):
        return None
    raw = msgspec.json.encode(GoldenGroups(policy.engine_class, temperature, rows))
    return raw if len(raw) <= MAX_GOLDEN_BYTES else None


def golden_files(
    files: Mapping[str, bytes], layout: WeightLayout, *, temperature: float, lora: LoraSpec | None = None
) -> dict[str, bytes]:
    """The golden groups of a run with these files, as one more of them; nothing where `make_golden` gives none, or the
    files are not a usable model."""
    if layout.size_bytes > MOST_BYTES:
        return {}
    try:
        dtype = layout.tensors[0].dtype
        run = read_run_model(files, layout_digest=layout.digest, weight_bytes=layout.size_bytes, dtype=dtype, lora=lora)
    except (RemoteProtocolError, IntegrityError):  # the run's own checks tell why
        return {}
    golden = make_golden(run, temperature=temperature)
    return {} if golden is None else {GOLDEN_FILE: golden}


def read_golden(raw: bytes, *, vocabulary: int, temperature: float) -> GoldenGroups:
    """The contents of a file from the network. `RemoteProtocolError` when it is not one of this run."""
    if len(raw) > MAX_GOLDEN_BYTES:
        raise RemoteProtocolError(f"{GOLDEN_FILE} has {len(raw)} bytes, more than {MAX_GOLDEN_BYTES}")
    try:
        golden = msgspec.json.decode(raw, type=GoldenGroups)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"{GOLDEN_FILE} cannot be read") from error
    if golden.temperature != temperature or not 0 < len(golden.rows) <= _MOST_ROWS:
        raise RemoteProtocolError(f"{GOLDEN_FILE} is not of this run's sampling settings")
    for row in golden.rows:
        sound = 0 < len(row.prompt) <= _MOST_TOKENS and 0 < len(row.positions) <= _MOST_TOKENS
        sound = sound and 0 <= row.seed < 1 << 63 and all(_is_sound(position) for position in row.positions)
        ids = (*row.prompt, *(c.token for position in row.positions for c in position.candidates))
        if not sound or min(ids) < 0 or max(ids) >= vocabulary:
            raise RemoteProtocolError(f"{GOLDEN_FILE} holds impossible numbers")
    return golden


def _is_sound(position: Position) -> bool:
    numbers = [number for c in position.candidates for number in (c.margin, c.logprob)]
    best = position.candidates[0] if position.candidates else None
    return (
        best is not None
        and best.margin == 0.0
        and len(position.candidates) <= CANDIDATES
        and all(map(math.isfinite, (position.size, *numbers)))
        and position.size >= 0.0
        and all(c.margin >= 0.0 >= c.logprob for c in position.candidates)
    )


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
