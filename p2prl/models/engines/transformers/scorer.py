"""The scorer on Hugging Face transformers.

Replaying pads on the right and needs neither mask nor cache. Logits are computed at the completions' positions alone,
from final hidden states where the model allows it. Memory is bounded: batches are split by tokens, and logits by
positions and by parts of the vocabulary, so that neither a long completion nor a large vocabulary can exhaust a
machine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from p2prl.errors import IntegrityError, MachineError
from p2prl.models.engines.transformers.batching import DEFAULT_BATCH_TOKENS, batches
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.hardware.failures import is_out_of_memory, release_memory
from p2prl.models.logprobs.policy_logprobs import pad_right
from p2prl.models.logprobs.replay_head import ReplayHead
from p2prl.models.sampler_port import GenerationRequest, Weights
from p2prl.models.scorer_port import Scored, check_counts
from p2prl.models.seeded_draw.draw import MarginsInParts, margins, part_width
from p2prl.protocol.rollout_group import EngineClass

_LOGITS = 1 << 24
"""Most logits of complete rows computed at once: 64 MiB in float32."""

_PART_LOGITS = 1 << 22
"""Most logits of a part of the vocabulary computed at once: 16 MiB in float32 stay in the last cache."""

_LESS_MEMORY = "Free some memory, or use a larger device; nothing is lost."

_SIZE_SAMPLE = 4096
"""Tokens whose logits give a position's size: it is known to 2 %, without another pass over the vocabulary."""


class TransformersScorer:
    """A `Scorer` that computes with `policy`."""

    def __init__(self, policy: PolicyModel, *, max_batch_tokens: int = DEFAULT_BATCH_TOKENS) -> None:
        self._policy = policy
        self._max_batch_tokens = max_batch_tokens

    @property
    def engine_class(self) -> EngineClass:
        """See `Scorer.engine_class`."""
        return self._policy.engine_class

    @property
    def layers(self) -> int:
        """See `Scorer.layers`."""
        return self._policy.layers

    def load_weights(self, weights: Weights) -> None:
        """See `Scorer.load_weights`."""
        self._policy.load(weights)

    def sleep(self) -> None:
        """See `Scorer.sleep`."""
        self._policy.drop_policy()
        release_memory()

    @torch.inference_mode()
    def replay(
        self,
        requests: Sequence[GenerationRequest],
        token_ids: Sequence[Sequence[int]],
        probes: Sequence[Sequence[int]] = (),
    ) -> list[Scored]:
        """See `Scorer.replay`."""
        check_counts(requests, token_ids, probes)
        self._policy.check_ready(requests)
        for request, ids in zip(requests, token_ids, strict=True):
            if not 0 < len(ids) <= request.max_new_tokens or min(ids) < 0 or max(ids) >= self._policy.vocabulary:
                raise IntegrityError("a completion is empty, too long or outside the vocabulary")
        scored: dict[int, Scored] = {}
        sizes = [(len(request.prompt_ids), len(ids)) for request, ids in zip(requests, token_ids, strict=True)]
        waiting = deque(batches(sizes, self._max_batch_tokens))
        while waiting:
            batch = waiting.popleft()
            try:
                chosen = [probes[i] for i in batch] if probes else []
                results = self._score([requests[i] for i in batch], [token_ids[i] for i in batch], chosen)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if len(batch) == 1:
                    raise MachineError("memory ran out replaying a single completion", remedy=_LESS_MEMORY) from error
            else:
                scored.update(zip(batch, results, strict=True))
                continue
            # Outside of the handler, whose traceback holds the tensors of the failed attempt.
            release_memory()
            waiting.extendleft([batch[len(batch) // 2 :], batch[: len(batch) // 2]])
            self._max_batch_tokens = max(1, self._max_batch_tokens // 2)
        return [scored[i] for i in range(len(requests))]

    def _score(
        self,
        requests: Sequence[GenerationRequest],
        token_ids: Sequence[Sequence[int]],
        probes: Sequence[Sequence[int]],
    ) -> list[Scored]:
        """Log-probs and margins of one batch, and the log-probs of the probes."""
        positions = _Positions.of(requests, token_ids)
        lasts = _Lasts.of(positions, token_ids, probes)
        layer = self._policy.replay_head
        prompts = [request.prompt_ids for request in requests]
        if layer is None:
            rows = [[*prompt, *ids] for prompt, ids in zip(prompts, token_ids, strict=True)]
            scores_4M = self._score_spans(pad_right(rows, self._policy.device), positions, lasts)
        else:
            states_MD = layer.states_before(prompts, token_ids)
            scores_4M = self._score_states(layer, states_MD, positions)
            self._probe_states(layer, states_MD, lasts)
        lengths = [len(ids) for ids in token_ids]
        parts = torch.split(scores_4M, lengths, dim=1)
        return [
            replace(Scored(*map(tuple, part.tolist())), probe_logprobs=tuple(row))
            for part, row in zip(parts, lasts.logprobs_NK.tolist(), strict=True)
        ]

    def _probe_states(self, layer: ReplayHead, states_MD: Tensor, lasts: _Lasts) -> None:
        """Fill in the probes from final hidden states: one complete row of logits for each completion."""
        vocabulary = self._policy.vocabulary
        count = max(1, _LOGITS // vocabulary)
        for start in range(0, len(lasts.positions) if lasts.wanted else 0, count):
            rows = torch.arange(start, min(start + count, len(lasts.positions)))
            lasts.fill(rows, layer.logits(states_MD[lasts.positions[rows].to(states_MD.device)], 0, vocabulary))

    def _score_states(self, layer: ReplayHead, states_MD: Tensor, positions: _Positions) -> Tensor:
        """Fields of `Scored` (4, M) from final hidden states: chunks of positions, parts of the vocabulary."""
        vocabulary = self._policy.vocabulary
        width = part_width(self._policy.device, vocabulary)
        count = max(1, _LOGITS // vocabulary if width is None else _PART_LOGITS // width)
        scores = []
        for start in range(0, len(states_MD), count):
            chunk = slice(start, start + count)
            if width is None:
                scores.append(_scores(layer.logits(states_MD[chunk], 0, vocabulary), positions, chunk))
                continue
            parts = MarginsInParts(*positions.settings(chunk))
            squares: list[Tensor] = []
            for first in range(0, vocabulary, width):
                logits = layer.logits(states_MD[chunk], first, min(first + width, vocabulary))
                parts.add(logits, first)
                squares.append(_size_sample(logits, vocabulary).square())
            sizes = torch.cat(squares, dim=1).mean(dim=1).sqrt() / positions.temperatures[chunk]
            scores.append(torch.stack([*parts.result(), sizes]))
        return torch.cat(scores, dim=1)

    def _score_spans(self, ids_NL: Tensor, positions: _Positions, lasts: _Lasts) -> Tensor:
        """Fields of `Scored` (4, M) from the model's own logits, a span of places at a time; fills in the probes."""
        first, last = int(positions.places.min()), int(positions.places.max()) + 1
        width = max(1, _LOGITS // (len(ids_NL) * self._policy.vocabulary))
        cache = self._policy.new_cache() if last - first > width else None
        scores = torch.empty(4, len(positions.places))
        fed = 0
        for start in range(first, last, width):
            end = min(start + width, last)
            logits_NKV = self._policy.forward(ids_NL[:, fed:end], cache=cache, keep=end - start)
            fed = end
            inside = torch.nonzero((positions.places >= start) & (positions.places < end))[:, 0]
            logits_MV = logits_NKV[positions.rows[inside], positions.places[inside] - start]
            scores[:, inside] = _scores(logits_MV, positions, inside)
            if lasts.wanted:
                rows = torch.nonzero(torch.isin(lasts.positions, inside))[:, 0]
                lasts.fill(rows, logits_MV[torch.searchsorted(inside, lasts.positions[rows])])
        return scores


def _scores(logits_MV: Tensor, positions: _Positions, which: slice | Tensor) -> Tensor:
    """Fields of `Scored` (4, M), on the CPU, of some positions and their complete logits."""
    squares = _size_sample(logits_MV, logits_MV.shape[1]).float().square()
    sizes = squares.mean(dim=1).sqrt().cpu() / positions.temperatures[which]
    return torch.stack([*(each.cpu() for each in margins(logits_MV, *positions.settings(which))), sizes])


def _size_sample(logits: Tensor, vocabulary: int) -> Tensor:
    """Evenly spaced logits of each row."""
    return logits[:, :: max(1, vocabulary // _SIZE_SAMPLE)]


@dataclass(frozen=True, slots=True)
class _Positions:
    """The M positions of a batch whose logits predict a token of a completion, row after row; (M,) each."""

    rows: Tensor
    places: Tensor
    """Index of the position within its row."""
    temperatures: Tensor
    seeds: Tensor
    steps: Tensor
    """Position of the token in the noise."""
    targets: Tensor

    @classmethod
    def of(cls, requests: Sequence[GenerationRequest], token_ids: Sequence[Sequence[int]]) -> _Positions:
        lengths = torch.tensor([len(ids) for ids in token_ids])
        steps = torch.cat([torch.arange(len(ids)) for ids in token_ids])
        firsts = torch.tensor([request.first_position for request in requests], dtype=torch.int64)
        prompts = torch.tensor([len(request.prompt_ids) for request in requests])
        return cls(
            rows=torch.arange(len(requests)).repeat_interleave(lengths),
            places=prompts.repeat_interleave(lengths) - 1 + steps,
            temperatures=torch.tensor([request.temperature for request in requests]).repeat_interleave(lengths),
            seeds=torch.tensor([request.seed for request in requests], dtype=torch.int64).repeat_interleave(lengths),
            steps=steps + firsts.repeat_interleave(lengths),
            targets=torch.tensor([token for ids in token_ids for token in ids], dtype=torch.int64),
        )

    def settings(self, part: slice | Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Arguments of `margins` for some of the positions."""
        return self.temperatures[part], self.seeds[part], self.steps[part], self.targets[part]


@dataclass(frozen=True, slots=True)
class _Lasts:
    """The last positions of the N completions of a batch, and the log-probs of K probes at each, filled in part by
    part."""

    positions: Tensor
    """Index among the batch's M positions, increasing (N,)."""
    temperatures: Tensor
    probes_NK: Tensor
    logprobs_NK: Tensor

    @classmethod
    def of(cls, positions: _Positions, token_ids: Sequence[Sequence[int]], probes: Sequence[Sequence[int]]) -> _Lasts:
        lasts = torch.tensor([len(ids) for ids in token_ids]).cumsum(0) - 1
        wanted = torch.tensor(probes, dtype=torch.int64) if probes else torch.empty(len(token_ids), 0).long()
        return cls(lasts, positions.temperatures[lasts], wanted, torch.zeros(wanted.shape))

    @property
    def wanted(self) -> bool:
        """Whether there are probes."""
        return bool(self.probes_NK.numel())

    def fill(self, rows: Tensor, logits_RV: Tensor) -> None:
        """Take the probes of some completions from the complete logits at their last positions."""
        scaled = logits_RV.float() / self.temperatures[rows].to(logits_RV.device)[:, None]
        tokens = self.probes_NK[rows].to(logits_RV.device)
        self.logprobs_NK[rows] = (scaled.gather(1, tokens) - scaled.logsumexp(1, keepdim=True)).cpu()
