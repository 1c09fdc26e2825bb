"""Gradient of the loss of a batch, in micro-batches that add up to it exactly, for any loss.

1. Log-probs of all rows without a graph, micro-batch after micro-batch.
2. The loss pipeline on these log-probs as leaves: it gives d loss / d log-prob, one coefficient for each token. With a
   value head, the values of the tokens are leaves too.
3. Forward and backward in micro-batches with those coefficients. Rows whose coefficients are all zero drop out.

The micro-batch scored last keeps its graph, so a batch that fits one micro-batch is computed once. A batch with small
logits takes the plain path: one forward pass, the loss, one backward pass.

Shape legend: B groups, G completions, T tokens, N rows (N = B·G).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from p2prl.errors import ConfigError
from p2prl.learner.training.loss_pipeline import Estimate
from p2prl.learner.training.micro_batches import MicroBatchRule, micro_batches
from p2prl.learner.training.value_head import TokenValues, ValueHead
from p2prl.models.logprobs.policy_forward import PolicyForward, Row, ScoredRows
from p2prl.models.logprobs.policy_logprobs import completion_logprobs

PLAIN_LOGIT_BYTES = 64 * 1024 * 1024
"""Largest logits of a batch for the plain path. About 3.3 times as much is held at once: nothing a machine lacks. A
constant, not a share of the memory, so that every machine takes the same path."""

_KEEP_SHARE = 2 / 3
"""Share of a micro-batch's rows that must have a coefficient for its kept graph to be used. Below it, running the
rows that have one forward again costs less than running the others backward."""

EstimateLoss = Callable[[Tensor, TokenValues | None], Estimate]
"""The loss pipeline on log-probs (N, T), and on values if there is a value head."""


class BatchLogprobs:
    """Log-probs of a model for batches of rows, with and without gradient."""

    def __init__(
        self, model: Any, *, temperature: float, autocast: torch.dtype | None = None, value: ValueHead | None = None
    ) -> None:
        """`ConfigError` for a value head on a model whose logits are more than a linear layer of its hidden states."""
        self._model = model
        self._temperature = temperature
        self._forward = PolicyForward(model, temperature=temperature, autocast=autocast)
        self._value = value
        if value is not None and not self._forward.has_linear_head:
            raise ConfigError(
                "this model has no place for a value head: its logits are more than a layer on its hidden states",
                remedy="Set head = false in [loss.value] of run.toml, or name another loss.",
            )
        self._vocabulary: int = model.config.get_text_config().vocab_size

    def score(self, rows: Sequence[Row], rule: MicroBatchRule) -> Tensor:
        """Log-probs (N, T), zero after the end of a completion. No gradient."""
        if self._is_small(rows, rule):
            with torch.no_grad():
                return self._plain(rows)
        logprobs_NT, _ = _blank(rows, self._device)
        for part in micro_batches([_tokens(row) for row in rows], tokens=rule.tokens):
            scored = self._forward.score([rows[i] for i in part])
            logprobs_NT[_places(rows, part, self._device)] = scored.logprobs_M
        return logprobs_NT

    def backward(self, rows: Sequence[Row], rule: MicroBatchRule, estimate: EstimateLoss) -> tuple[Tensor, Estimate]:
        """Add the gradient of the loss to the parameters; returns the log-probs (N, T) and what `estimate` gave."""
        if self._is_small(rows, rule):
            logprobs_NT = self._plain(rows)
            result = estimate(logprobs_NT, None)
            result.loss.backward()  # type: ignore[no-untyped-call]
            return logprobs_NT.detach(), result
        return self._backward_in_parts(rows, rule, estimate)

    def _backward_in_parts(
        self, rows: Sequence[Row], rule: MicroBatchRule, estimate: EstimateLoss
    ) -> tuple[Tensor, Estimate]:
        parts = micro_batches([_tokens(row) for row in rows], tokens=rule.tokens)
        logprobs_NT, normalizers_NT = _blank(rows, self._device)
        values_NT, average_NT = _blank(rows, self._device)
        kept: ScoredRows | None = None
        for part in parts:
            kept = self._forward.score(
                [rows[i] for i in part], graph=part is parts[-1], checkpointing=rule.checkpointing
            )
            places = _places(rows, part, self._device)
            logprobs_NT[places], normalizers_NT[places] = kept.logprobs_M, kept.normalizers_M
            if self._value is not None:
                assert kept.hidden_MH is not None, "checked at the start"
                average_NT[places] = self._value.average(kept.hidden_MH)
                values_NT[places] = self._value.values(kept.hidden_MH).detach()
        assert kept is not None
        leaf_NT = logprobs_NT.clone().requires_grad_()
        values_NT.requires_grad_(self._value is not None)
        result = estimate(leaf_NT, None if self._value is None else TokenValues(values_NT, average_NT))
        result.loss.backward()  # type: ignore[no-untyped-call]
        coefficients_NT = torch.zeros_like(logprobs_NT) if leaf_NT.grad is None else leaf_NT.grad
        value_NT = torch.zeros_like(logprobs_NT) if values_NT.grad is None else values_NT.grad
        live = ((coefficients_NT != 0) | (value_NT != 0)).any(dim=-1).tolist()
        waiting = [i for i in range(len(rows)) if live[i]]
        last = parts[-1]
        if sum(live[i] for i in last) >= _KEEP_SHARE * len(last):
            places = _places(rows, last, self._device)
            self._push(kept, coefficients_NT[places], value_NT[places])
            waiting = [i for i in waiting if i not in set(last)]
        del kept
        for part in micro_batches([_tokens(rows[i]) for i in waiting], tokens=rule.tokens):
            chosen = [waiting[i] for i in part]
            places = _places(rows, chosen, self._device)
            scored = self._forward.regraph(
                [rows[i] for i in chosen], normalizers_NT[places], checkpointing=rule.checkpointing
            )
            self._push(scored, coefficients_NT[places], value_NT[places])
        self._fill_gradients()
        return logprobs_NT, result

    def _push(self, scored: ScoredRows, coefficients_M: Tensor, value_coefficients_M: Tensor) -> None:
        """Add the gradient of these tokens' log-probs and values to the parameters."""
        extra_MH = None
        if self._value is not None:
            assert scored.hidden_MH is not None, "checked at the start"
            extra_MH = self._value.backward(scored.hidden_MH, value_coefficients_M)
        self._forward.backward(scored, coefficients_M, extra_gradient_MH=extra_MH)

    def _fill_gradients(self) -> None:
        """Give every parameter a gradient: a batch without advantages has zeros, as it has in one piece."""
        for parameter in self._model.parameters():
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    def _plain(self, rows: Sequence[Row]) -> Tensor:
        prompts, completions = [row[0] for row in rows], [row[1] for row in rows]
        with self._forward.autocast():
            return completion_logprobs(self._model, prompts, completions, self._temperature)[0]

    def _is_small(self, rows: Sequence[Row], rule: MicroBatchRule) -> bool:
        """Whether the whole batch is within the rule, and its logits are small. Values need hidden states, which the
        plain path does not have."""
        if self._value is not None:
            return False
        tokens = len(rows) * max(len(prompt) + len(completion) for prompt, completion in rows)
        return tokens <= rule.tokens and tokens * self._vocabulary * 4 <= PLAIN_LOGIT_BYTES

    @property
    def _device(self) -> torch.device:
        device: torch.device = next(self._model.parameters()).device
        return device


def _tokens(row: Row) -> int:
    """Tokens the model computes for a row."""
    return len(row[0]) + len(row[1]) - 1


def _blank(rows: Sequence[Row], device: torch.device) -> tuple[Tensor, Tensor]:
    """Two tensors (N, T) of zeros."""
    shape = (len(rows), max(len(completion) for _, completion in rows))
    return torch.zeros(shape, device=device), torch.zeros(shape, device=device)


def _places(rows: Sequence[Row], part: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Indices (row, token) of the completion tokens of some rows, in their order, (M,) each."""
    lengths = torch.tensor([len(rows[i][1]) for i in part])
    rows_M = torch.repeat_interleave(torch.tensor(part), lengths)
    tokens_M = torch.cat([torch.arange(int(length)) for length in lengths])
    return rows_M.to(device), tokens_M.to(device)
