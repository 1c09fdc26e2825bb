"""The scorer on Hugging Face transformers.

Replaying pads on the right and needs neither mask nor cache. Memory is bounded: batches are split by tokens, and logits
by positions, so that neither a long completion nor a large vocabulary can exhaust a machine.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from p2prl.errors import IntegrityError, LocalProtocolError
from p2prl.models.batching import DEFAULT_BATCH_TOKENS, batches
from p2prl.models.gumbel_noise import MAX_NOISE_ELEMENTS, gumbel
from p2prl.models.policy_logprobs import pad_right
from p2prl.models.policy_model import PolicyModel
from p2prl.models.sampler_port import GenerationRequest, Weights
from p2prl.models.scorer_port import Scored
from p2prl.protocol.rollout_group import EngineClass


class TransformersScorer:
    """A `Scorer` that computes with `policy`."""

    def __init__(self, policy: PolicyModel, *, max_batch_tokens: int = DEFAULT_BATCH_TOKENS) -> None:
        self._policy = policy
        self._max_batch_tokens = max_batch_tokens

    @property
    def engine_class(self) -> EngineClass:
        """See `Scorer.engine_class`."""
        return self._policy.engine_class

    def load_weights(self, weights: Weights) -> None:
        """See `Scorer.load_weights`."""
        self._policy.load(weights)

    @torch.inference_mode()
    def replay(self, requests: Sequence[GenerationRequest], token_ids: Sequence[Sequence[int]]) -> list[Scored]:
        """See `Scorer.replay`."""
        if len(requests) != len(token_ids):
            raise LocalProtocolError(f"{len(token_ids)} completions for {len(requests)} requests")
        self._policy.check_ready(requests)
        for request, ids in zip(requests, token_ids, strict=True):
            if not 0 < len(ids) <= request.max_new_tokens or min(ids) < 0 or max(ids) >= self._policy.vocabulary:
                raise IntegrityError("a completion is empty, too long or outside the vocabulary")
        scored: dict[int, Scored] = {}
        sizes = [(len(request.prompt_ids), len(ids)) for request, ids in zip(requests, token_ids, strict=True)]
        for batch in batches(sizes, self._max_batch_tokens):
            results = self._score([requests[i] for i in batch], [token_ids[i] for i in batch])
            scored.update(zip(batch, results, strict=True))
        return [scored[i] for i in range(len(requests))]

    def _score(self, requests: Sequence[GenerationRequest], token_ids: Sequence[Sequence[int]]) -> list[Scored]:
        """Log-probs and margins of one batch."""
        device = self._policy.device
        rows = [[*request.prompt_ids, *ids] for request, ids in zip(requests, token_ids, strict=True)]
        ids_NL = pad_right(rows, device)
        seeds_N = torch.tensor([request.seed for request in requests], dtype=torch.int64, device=device)
        temperatures_N = torch.tensor([request.temperature for request in requests], device=device)
        prompts_N = torch.tensor([len(request.prompt_ids) for request in requests], device=device)
        first, last = int(prompts_N.min()) - 1, ids_NL.shape[1] - 1  # logits at first..last − 1 predict completions
        width = max(1, MAX_NOISE_ELEMENTS // (len(rows) * self._policy.vocabulary))
        cache = self._policy.new_cache() if last - first > width else None
        logprobs, margins = [], []
        fed = 0
        for start in range(first, last, width):
            end = min(start + width, last)
            logits = self._policy.forward(ids_NL[:, fed:end], cache=cache, keep=end - start)
            fed = end
            targets = ids_NL[:, start + 1 : end + 1, None]
            # Left of a row's completion the step is negative: computed at 0 and removed below.
            steps = torch.arange(start + 1, end + 1, device=device) - prompts_N[:, None]
            scaled = logits.float() / temperatures_N[:, None, None]
            logprobs.append(torch.log_softmax(scaled, dim=-1).gather(2, targets)[:, :, 0])
            noisy = scaled + gumbel(seeds_N, steps.clamp(min=0), scaled.shape[-1])
            margins.append(noisy.amax(dim=-1) - noisy.gather(2, targets)[:, :, 0])
        all_logprobs, all_margins = torch.cat(logprobs, dim=1).tolist(), torch.cat(margins, dim=1).tolist()
        results = []
        for i, (request, ids) in enumerate(zip(requests, token_ids, strict=True)):
            own = slice(len(request.prompt_ids) - 1 - first, len(request.prompt_ids) - 1 - first + len(ids))
            results.append(Scored(tuple(all_logprobs[i][own]), tuple(all_margins[i][own])))
        return results
