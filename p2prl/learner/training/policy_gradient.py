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
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from p2prl.errors import ConfigError
from p2prl.learner.training.loss_pipeline import Estimate
from p2prl.learner.training.micro_batches import MicroBatchRule, micro_batches
from p2prl.learner.training.value_head import TokenValues, ValueHead
from p2prl.models.logprobs.policy_forward import PolicyForward, Row, ScoredRows
from p2prl.models.logprobs.policy_logprobs import completion_logprobs
from p2prl.models.logprobs.scoring_model import ScoringModel

PLAIN_LOGIT_BYTES = 64 * 1024 * 1024
"""Largest logits of a batch for the plain path. About 3.3 times as much is held at once: nothing a machine lacks. A
constant, not a share of the memory, so that every machine takes the same path."""

KEEP_SHARE = 2 / 3
"""Share of a micro-batch's rows that must have a coefficient for its kept graph to be used. Below it, running the
rows that have one forward again costs less than running the others backward."""

EstimateLoss = Callable[[Tensor, TokenValues | None], Estimate]
"""The loss pipeline on log-probs (N, T), and on values if there is a value head."""


@dataclass(frozen=True, slots=True)
class TokenScores:
    """What a loss reads of a batch; no gradient."""

    logprobs_NT: Tensor
    """Nats; zero after the end of a completion."""
    values: TokenValues | None = None
    """Estimates of the value head; None without one."""


class GradientSource(Protocol):
    """Scores rows, and adds gradients of their log-probs to its parameters."""

    def score(self, rows: Sequence[Row], rule: MicroBatchRule) -> TokenScores:
        """Score a batch that `push` will be called for."""
        ...

    def push(self, coefficients_NT: Tensor, value_coefficients_NT: Tensor | None = None) -> None:
        """Add the gradient of Σ coefficient · log-prob + Σ value coefficient · value, over the batch scored last."""
        ...


def backpropagate(
    policy: GradientSource, rows: Sequence[Row], rule: MicroBatchRule, estimate: EstimateLoss
) -> tuple[Tensor, Estimate]:
    """Add the gradient of the loss to the policy's parameters; returns the log-probs (N, T) and what `estimate` gave.

    The loss sees log-probs and values as leaves. What it passes on is linear in their gradient, so any policy that
    pushes coefficients, on one machine or many, has the gradient of the whole batch.
    """
    scores = policy.score(rows, rule)
    leaf_NT = scores.logprobs_NT.clone().requires_grad_()
    values = None
    if scores.values is not None:
        values = TokenValues(scores.values.values_NT.clone().requires_grad_(), scores.values.average_NT)
    result = estimate(leaf_NT, values)
    result.loss.backward()  # type: ignore[no-untyped-call]
    policy.push(_gradient(leaf_NT), None if values is None else _gradient(values.values_NT))
    return scores.logprobs_NT, result


class BatchLogprobs:
    """Log-probs of a model for batches of rows, with and without gradient."""

    def __init__(
        self, model: Any, *, temperature: float, autocast: torch.dtype | None = None, value: ValueHead | None = None
    ) -> None:
        """`ConfigError` for a value head on a model whose logits are more than a linear layer of its hidden states."""
        self._model = model
        self._temperature = temperature
        self._scoring = ScoringModel(model, temperature=temperature, autocast=autocast)
        self._forward = PolicyForward(self._scoring)
        self._value = value
        if value is not None:
            check_value_head(self._scoring)
        self._vocabulary: int = model.config.get_text_config().vocab_size
        self._scored: _WholeBatch | _SplitBatch | None = None

    def logprobs(self, rows: Sequence[Row], rule: MicroBatchRule) -> Tensor:
        """Log-probs (N, T), zero after the end of a completion. No gradient."""
        if self._is_small(rows, rule):
            with torch.no_grad():
                return self._plain(rows)
        logprobs_NT = blank(rows, self._device)
        for part in micro_batches([row_tokens(row) for row in rows], tokens=rule.tokens):
            scored = self._forward.score([rows[i] for i in part])
            logprobs_NT[places_of(rows, part, self._device)] = scored.logprobs_M
        return logprobs_NT

    def score(self, rows: Sequence[Row], rule: MicroBatchRule) -> TokenScores:
        """Log-probs and values of a batch, of which the micro-batch scored last keeps its graph for `push`."""
        if self._is_small(rows, rule):
            graph_NT = self._plain(rows)
            self._scored = _WholeBatch(graph_NT)
            return TokenScores(graph_NT.detach())
        parts = micro_batches([row_tokens(row) for row in rows], tokens=rule.tokens)
        logprobs_NT, normalizers_NT = blank(rows, self._device), blank(rows, self._device)
        values_NT, average_NT = blank(rows, self._device), blank(rows, self._device)
        kept: ScoredRows | None = None
        for part in parts:
            kept = self._forward.score(
                [rows[i] for i in part], graph=part is parts[-1], checkpointing=rule.checkpointing
            )
            places = places_of(rows, part, self._device)
            logprobs_NT[places], normalizers_NT[places] = kept.logprobs_M, kept.normalizers_M
            if self._value is not None:
                assert kept.hidden_MH is not None, "checked at the start"
                average_NT[places] = self._value.average(kept.hidden_MH)
                values_NT[places] = self._value.values(kept.hidden_MH).detach()
        assert kept is not None
        self._scored = _SplitBatch(rows, rule, parts[-1], kept, normalizers_NT)
        return TokenScores(logprobs_NT, None if self._value is None else TokenValues(values_NT, average_NT))

    def push(self, coefficients_NT: Tensor, value_coefficients_NT: Tensor | None = None) -> None:
        """Add the gradient of Σ coefficient · log-prob, and of the values, over the batch scored last."""
        scored, self._scored = self._scored, None
        assert scored is not None, "a batch is scored before its coefficients are pushed, once"
        if isinstance(scored, _WholeBatch):
            torch.autograd.backward(scored.graph_NT, coefficients_NT)
            return
        rows, rule, last = scored.rows, scored.rule, scored.last
        value_NT = torch.zeros_like(coefficients_NT) if value_coefficients_NT is None else value_coefficients_NT
        live = live_rows(coefficients_NT, value_NT)
        waiting = [i for i in range(len(rows)) if live[i]]
        if sum(live[i] for i in last) >= KEEP_SHARE * len(last):
            places = places_of(rows, last, self._device)
            self._push(scored.kept, coefficients_NT[places], value_NT[places])
            waiting = [i for i in waiting if i not in set(last)]
        normalizers_NT = scored.normalizers_NT
        del scored  # and the kept graph with it
        for part in micro_batches([row_tokens(rows[i]) for i in waiting], tokens=rule.tokens):
            chosen = [waiting[i] for i in part]
            places = places_of(rows, chosen, self._device)
            again = self._forward.score(
                [rows[i] for i in chosen],
                graph=True,
                checkpointing=rule.checkpointing,
                normalizers_M=normalizers_NT[places],
            )
            self._push(again, coefficients_NT[places], value_NT[places])
        self._fill_gradients()

    def forget(self) -> None:
        """Free the graph of a batch whose coefficients will not come."""
        self._scored = None

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
        with self._scoring.autocast():
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


@dataclass(frozen=True, slots=True)
class _WholeBatch:
    """A batch in one piece."""

    graph_NT: Tensor


@dataclass(frozen=True, slots=True)
class _SplitBatch:
    """A batch in micro-batches, of which one has its graph."""

    rows: Sequence[Row]
    rule: MicroBatchRule
    last: list[int]
    kept: ScoredRows
    normalizers_NT: Tensor


def check_value_head(scoring: ScoringModel) -> None:
    """`ConfigError` unless a model has hidden states that a value head can read."""
    if not scoring.has_linear_head:
        raise ConfigError(
            "this model has no place for a value head: its logits are more than a layer on its hidden states",
            remedy="Set head = false in [loss.value] of run.toml, or name another loss.",
        )


def live_rows(coefficients_NT: Tensor, value_coefficients_NT: Tensor) -> list[bool]:
    """Which rows have a coefficient other than zero."""
    live: list[bool] = ((coefficients_NT != 0) | (value_coefficients_NT != 0)).any(dim=-1).tolist()
    return live


def row_tokens(row: Row) -> int:
    """Tokens the model computes for a row."""
    return len(row[0]) + len(row[1]) - 1


def blank(rows: Sequence[Row], device: torch.device) -> Tensor:
    """Zeros (N, T)."""
    return torch.zeros(len(rows), max(len(completion) for _, completion in rows), device=device)


def places_of(rows: Sequence[Row], part: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Indices (row, token) of the completion tokens of some rows, in their order, (M,) each."""
    lengths = torch.tensor([len(rows[i][1]) for i in part])
    rows_M = torch.repeat_interleave(torch.tensor(part), lengths)
    tokens_M = torch.cat([torch.arange(int(length)) for length in lengths])
    return rows_M.to(device), tokens_M.to(device)


def _gradient(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
