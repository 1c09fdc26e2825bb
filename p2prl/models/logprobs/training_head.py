"""Head of a causal language model for training: log-probs of given tokens and their gradient, tile by tile.

Logits are never held whole: a tile is some positions times some words of the vocabulary. Scoring keeps a running
log-sum-exp. The gradient is computed in the same way from known coefficients, because once d loss / d log-prob is
known, d loss / d logits of a tile needs nothing but the tile and the log-sum-exp. On a CPU a tile stays in the cache,
which makes both passes over a vocabulary of 151,936 together .6 times as long as one `log_softmax` with its backward.

Shapes: M positions, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from p2prl.models.logprobs.large_gradients import place_for

_TILE_POSITIONS = {"cpu": 512}
"""Positions of a tile by device type; other devices take `_LARGE_TILE`. Measured on a CPU with V = 151,936: 512 x 4,096
(8 MB of logits) is fastest, 512 x 16,384 takes 1.3 times as long and all of V twice as long."""

_LARGE_TILE_POSITIONS = 8192
"""A GPU wants long tiles; the logits of one are 256 MB."""

_TILE_WORDS = {"cpu": 4096}
_LARGE_TILE_WORDS = 8192


@dataclass(frozen=True, slots=True)
class TrainingHead:
    """The last layer of a causal language model: logits = (W h + b) / temperature."""

    weight_VH: Tensor
    """Often the input embedding too."""
    bias_V: Tensor | None
    temperature: float
    compute_dtype: torch.dtype
    """Type the products are computed in; sums and exponentials are float32."""

    def logprobs(self, hidden_MH: Tensor, tokens_M: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probs of tokens and the log-normalizers (log-sum-exp of the logits), both (M,) float32. No gradient."""
        picked_M, normalizers_M = self.logits(hidden_MH, tokens_M)
        return picked_M - normalizers_M, normalizers_M

    def logits(self, hidden_MH: Tensor, tokens_M: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of tokens and the log-sum-exp of all, both (M,) float32. No gradient.

        Of a head that has a part of the words, tokens outside them have a logit of 0 here.
        """
        count = len(tokens_M)
        best_M = torch.full((count,), torch.finfo(torch.float32).min, device=tokens_M.device)
        total_M = torch.zeros_like(best_M)
        picked_M = torch.zeros_like(best_M)
        with torch.no_grad():
            for words, rows, logits in self._tiles(hidden_MH):
                higher = torch.maximum(best_M[rows], logits.amax(dim=-1))
                inside, index = _inside(tokens_M[rows], words)
                picked = logits.gather(1, index[:, None])[:, 0]
                picked_M[rows] = torch.where(inside, picked, picked_M[rows])
                scaled = total_M[rows] * (best_M[rows] - higher).exp()
                total_M[rows] = scaled + logits.sub_(higher[:, None]).exp_().sum(dim=-1)
                best_M[rows] = higher
            normalizers_M = best_M + total_M.log()
        return picked_M, normalizers_M

    def attach(self, hidden_MH: Tensor, tokens_M: Tensor, logprobs_M: Tensor, normalizers_M: Tensor) -> Tensor:
        """These log-probs (M,) as a node of the graph of hidden states, weight and bias.

        `normalizers_M` are those of `logprobs`. Nothing is computed before the backward pass, and of that the values
        of `logprobs_M` are no part.
        """
        attached_M: Tensor = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
            hidden_MH,
            self.weight_VH,
            self.bias_V,
            tokens_M,
            logprobs_M,
            normalizers_M,
            self.temperature,
            self.compute_dtype,
        )
        return attached_M

    def gradients(
        self,
        hidden_MH: Tensor,
        tokens_M: Tensor,
        normalizers_M: Tensor,
        coefficients_M: Tensor,
        *,
        into_VH: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Gradients of Σ coefficient · log-prob towards hidden states, weight and bias; None for a frozen one.

        That of the weight is added to `into_VH` if given.
        """
        scaled_M = coefficients_M.float() / self.temperature
        gradient_MH = torch.zeros(hidden_MH.shape, dtype=torch.float32, device=hidden_MH.device)
        gradient_VH = _blank_for(self.weight_VH) if into_VH is None else into_VH
        gradient_V = _blank_for(self.bias_V)
        with torch.no_grad():
            current: slice | None = None
            tile_gradient: Tensor | None = None
            for words, rows, logits in self._tiles(hidden_MH):
                if words != current:
                    _write(gradient_VH, current, tile_gradient)
                    current, tile_gradient = words, None
                # d logits = coefficient / temperature · (one-hot − softmax)
                d_logits = logits.sub_(normalizers_M[rows, None]).exp_().mul_(-scaled_M[rows, None])
                inside, index = _inside(tokens_M[rows], words)
                d_logits.scatter_add_(1, index[:, None], torch.where(inside, scaled_M[rows], 0.0)[:, None])
                if gradient_V is not None:
                    gradient_V[words] += d_logits.sum(dim=0).to(gradient_V.dtype)
                d_logits = d_logits.to(self.compute_dtype)
                weight = self.weight_VH[words].to(self.compute_dtype)
                gradient_MH[rows] += (d_logits @ weight).float()
                if gradient_VH is not None:
                    hidden = hidden_MH[rows].to(self.compute_dtype)
                    if gradient_VH.dtype == self.compute_dtype == torch.float32:
                        gradient_VH[words].addmm_(d_logits.T, hidden)
                    else:  # add up the positions in float32, and round once
                        part = (d_logits.T @ hidden).float()
                        tile_gradient = part if tile_gradient is None else tile_gradient.add_(part)
            _write(gradient_VH, current, tile_gradient)
        return gradient_MH.to(hidden_MH.dtype), gradient_VH, gradient_V

    def _tiles(self, hidden_MH: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
        """(words, positions, float32 logits of both), all positions of a slice of words before the next slice."""
        device = hidden_MH.device.type
        words_step = _TILE_WORDS.get(device, _LARGE_TILE_WORDS)
        rows_step = _TILE_POSITIONS.get(device, _LARGE_TILE_POSITIONS)
        hidden = hidden_MH.to(self.compute_dtype)
        for first in range(0, len(self.weight_VH), words_step):
            words = slice(first, min(first + words_step, len(self.weight_VH)))
            weight = self.weight_VH[words].to(self.compute_dtype)
            for start in range(0, len(hidden), rows_step):
                rows = slice(start, min(start + rows_step, len(hidden)))
                logits = (hidden[rows] @ weight.T).float()
                if self.bias_V is not None:
                    logits += self.bias_V[words].float()
                if self.temperature != 1.0:
                    logits /= self.temperature
                yield words, rows, logits


def _inside(tokens: Tensor, words: slice) -> tuple[Tensor, Tensor]:
    """Whether each token is one of these words, and a legal index among them (its own if it is)."""
    index = tokens - words.start
    inside = (index >= 0) & (tokens < words.stop)
    return inside, index.clamp(0, words.stop - words.start - 1)


def _blank_for(parameter: Tensor | None) -> Tensor | None:
    """Zeros for a parameter's gradient; None where there is no parameter, or a frozen one."""
    return torch.zeros_like(parameter) if parameter is not None and parameter.requires_grad else None


def _write(gradient_VH: Tensor | None, words: slice | None, tile_gradient: Tensor | None) -> None:
    """Round a finished tile into the gradient, if it was added up apart."""
    if gradient_VH is not None and words is not None and tile_gradient is not None:
        gradient_VH[words] += tile_gradient.to(gradient_VH.dtype)


class _TokenLogprobs(torch.autograd.Function):
    """Log-probs whose backward pass is `TrainingHead.gradients`, so that autograd delivers the head's gradient too."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_MH: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor | None,
        tokens_M: Tensor,
        logprobs_M: Tensor,
        normalizers_M: Tensor,
        temperature: float,
        compute_dtype: torch.dtype,
    ) -> Tensor:
        # Autograd notices a changed weight, and one that was gathered for this pass is gathered again before the next.
        ctx.save_for_backward(hidden_MH, weight_VH, bias_V, tokens_M, normalizers_M)
        ctx.settings = (temperature, compute_dtype)
        return logprobs_M.clone()

    @staticmethod
    def backward(ctx: Any, coefficients_M: Tensor) -> tuple[Tensor | None, ...]:
        hidden_MH, weight_VH, bias_V, tokens_M, normalizers_M = ctx.saved_tensors
        head = TrainingHead(weight_VH, bias_V, *ctx.settings)
        place_VH = place_for(weight_VH)
        to_hidden, to_weight, to_bias = head.gradients(
            hidden_MH, tokens_M, normalizers_M, coefficients_M, into_VH=place_VH
        )
        return to_hidden, to_weight if place_VH is None else None, to_bias, None, None, None, None, None
