"""The seeded draw inside vLLM: logits processors that compute the run's own draw and let no other token win.

vLLM's own seeds cannot serve: its noise changes with the backend and the release. The processor draws the token from
the logits (`p2prl/models/seeded_draw/`), raises that one logit above all others, and vLLM takes it greedily. The
log-prob, at the sampling temperature and without the noise, is computed on the way: vLLM's are at temperature 1.

vLLM has two model runners with different interfaces. The first passes changes of the batch (`runner_v1`). The second,
its default on CUDA, passes the batch of every step (`runner_v2`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from p2prl.models.sampler_port import Ticket
from p2prl.models.seeded_draw.draw import draw_with_logprobs

ARGUMENTS = "p2prl"
"""The key of a request's `DrawArguments` in vLLM's `SamplingParams.extra_args`."""


@dataclass(frozen=True, slots=True)
class DrawArguments:
    """What the draws of one request depend on, besides its logits."""

    ticket: Ticket
    seed: int
    temperature: float
    first: int
    """Position of the request's first token in the noise; above 0 where a completion is resumed or continued."""


@dataclass(frozen=True, slots=True)
class DrawnToken:
    """One draw."""

    token: int
    logprob: float
    version: int

    @property
    def is_number(self) -> bool:
        """Whether the logits were numbers."""
        return math.isfinite(self.logprob)


@dataclass(slots=True)
class Draws:
    """What the processor of one engine has drawn, until the sampler takes it.

    vLLM also draws for rows it then discards, such as unfinished prompts, so a draw counts only when vLLM reports it.
    """

    version: int = -1
    """The policy in the engine."""

    watched: Ticket | None = None
    """A request whose last logits are kept in `logits`."""

    logits: Tensor | None = None

    _drawn: dict[Ticket, dict[int, DrawnToken]] = field(default_factory=dict)

    def draw(self, logits_NV: Tensor, arguments: Sequence[DrawArguments], positions: Sequence[int]) -> None:
        """Draw one token a row, and raise its logit above all others in place.

        `positions` are the rows' positions within their completions.
        """
        for row, of in enumerate(arguments):
            if of.ticket == self.watched:
                self.logits = logits_NV[row].clone()
        seeds_N = torch.tensor([of.seed for of in arguments], dtype=torch.int64)
        temperatures_N = torch.tensor([of.temperature for of in arguments])
        tokens_N, logprobs_N = draw_with_logprobs(logits_NV, temperatures_N, seeds_N, torch.tensor(positions))
        logits_NV.scatter_(1, tokens_N[:, None], torch.finfo(logits_NV.dtype).max)
        drawn = zip(arguments, positions, tokens_N.tolist(), logprobs_N.tolist(), strict=True)
        for of, position, token, logprob in drawn:
            self._drawn.setdefault(of.ticket, {})[position] = DrawnToken(token, logprob, self.version)

    def take(self, ticket: Ticket, position: int) -> DrawnToken | None:
        """The last draw at this position of a completion, once."""
        return self._drawn.get(ticket, {}).pop(position, None)

    def answer(self, ticket: Ticket) -> Tensor:
        """The logits (V,) of the watched request."""
        self.forget(ticket)
        logits, self.logits, self.watched = self.logits, None, None
        assert logits is not None
        return logits

    def forget(self, ticket: Ticket) -> None:
        """Drop what is left of a request that ended or was cancelled."""
        self._drawn.pop(ticket, None)

    def clear(self) -> None:
        """Drop all draws."""
        self._drawn.clear()
        self.watched = self.logits = None


def runner_v1(draws: Draws) -> type[Any]:
    """The logits processor for vLLM's first model runner, which writes to `draws`."""
    from vllm.v1.sample.logits_processor import LogitsProcessor, MoveDirectionality

    class SeededDraw(LogitsProcessor):  # type: ignore[misc]  # vLLM is optional, so mypy does not see the base class
        """Follows the rows of vLLM's batch, and draws for each."""

        def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
            del vllm_config, device, is_pin_memory
            self._rows: dict[int, tuple[DrawArguments, list[int]]] = {}

        def is_argmax_invariant(self) -> bool:
            return False

        def update_state(self, batch_update: Any | None) -> None:
            """Apply removals, additions and moves of rows, in this order."""
            if batch_update is None:
                return
            for row in batch_update.removed:
                self._rows.pop(row, None)
            for row, params, _, output_ids in batch_update.added:  # output_ids grows as vLLM decodes
                self._rows[row] = params.extra_args[ARGUMENTS], output_ids
            for source, target, direction in batch_update.moved:
                moved, replaced = self._rows.pop(source, None), self._rows.pop(target, None)
                if moved is not None:
                    self._rows[target] = moved
                if replaced is not None and direction is MoveDirectionality.SWAP:
                    self._rows[source] = replaced

        def apply(self, logits: Tensor) -> Tensor:
            rows = [self._rows[row] for row in range(len(logits))]
            draws.draw(logits, [of for of, _ in rows], [of.first + len(ids) for of, ids in rows])
            return logits

    return SeededDraw


def runner_v2(draws: Draws) -> type[Any]:
    """The logits processor for vLLM's second model runner, which writes to `draws`."""
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor

    class SeededDraw(LogitsProcessor):  # type: ignore[misc]  # vLLM is optional, so mypy does not see the base class
        """Knows requests by their slot; a row of a step names its slot."""

        def __init__(self, vllm_config: Any, req_states: Any) -> None:
            super().__init__(vllm_config, req_states)
            self._prompt_len = req_states.prompt_len.np
            self._slots: dict[int, DrawArguments] = {}

        def add_request(self, req_idx: int, sampling_params: Any) -> bool:
            self._slots[req_idx] = sampling_params.extra_args[ARGUMENTS]
            return True

        def apply(self, logits: Tensor, ctx: Any) -> Tensor:
            slots = ctx.idx_mapping_np.tolist()
            arguments = [self._slots[slot] for slot in slots]
            lengths = ctx.seq_lens_upper_bound_np[: len(slots)].tolist()  # exact without speculative decoding
            # Before the end of its prompt a row predicts nothing: vLLM discards that draw.
            sampled = [
                max(0, length - int(self._prompt_len[slot])) for slot, length in zip(slots, lengths, strict=True)
            ]
            draws.draw(logits, arguments, [of.first + count for of, count in zip(arguments, sampled, strict=True)])
            return logits

    return SeededDraw
