"""One rank's part of every command. All ranks run this code on the same commands, so their collectives meet."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from p2prl.algorithms.guards import ema_update
from p2prl.learner.training.micro_batches import MicroBatchRule
from p2prl.learner.training.policy_gradient import (
    KEEP_SHARE,
    TokenScores,
    blank,
    check_value_head,
    live_rows,
    places_of,
    row_tokens,
)
from p2prl.learner.training.trainer_checkpoint import OPTIMIZER_FILE, REFERENCE_FILE, load_value
from p2prl.learner.training.update_engine import EngineSettings, GradientNorms
from p2prl.learner.training.value_head import TokenValues, ValueHead
from p2prl.learner.training.weight_optimizer import WeightOptimizer
from p2prl.models.logprobs.policy_forward import PolicyForward, Row, ScoredRows
from p2prl.models.logprobs.scoring_model import ScoringModel
from p2prl.ranks.process_group import RankGroup
from p2prl.ranks.sharded_model import Shard, ShardedModel
from p2prl.ranks.shares import keeps_last, split

_EMPTY: Row = ((0,), (0,))
"""Stands for the rows of an empty micro-batch. Its coefficients are zero."""


class Rank:
    """Weights, gradients and optimizer state of this rank."""

    def __init__(self, model: Any, settings: EngineSettings, group: RankGroup, *, zero: int) -> None:
        """Every rank holds all of `model` when it begins, and its part of it from then on."""
        self._group = group
        self._settings = settings
        model = model.eval()
        self._value = None
        if settings.value is not None:
            self._value = ValueHead(model.config.get_text_config().hidden_size, settings.value, group.device)
        temperature, autocast = settings.temperature, settings.autocast
        frozen = None
        if settings.reference is not None:
            copied = copy.deepcopy(model).eval().requires_grad_(False)
            frozen = ScoringModel(copied, temperature=temperature, autocast=autocast)
        scoring = ScoringModel(model, temperature=temperature, autocast=autocast)
        if self._value is not None:
            check_value_head(scoring)
        self._model = ShardedModel(scoring, group, zero=zero)
        self._forward = PolicyForward(scoring)
        self.shards = self._model.shards()
        """This rank's part of every weight."""
        self.trained = [shard for shard in self.shards if shard.parameter.requires_grad]
        """Of those that are trained."""
        self.reference: list[Shard] = []
        """Of the reference policy; empty without one."""
        self._reference_forward = None
        if frozen is not None:
            self._reference_forward = PolicyForward(frozen)
            names = {shard.name for shard in self.trained}
            self.reference = [each for each in ShardedModel(frozen, group, zero=3).shards() if each.name in names]
        self._optimizer = WeightOptimizer(
            [shard.local for shard in self.trained],
            settings.optimizer,
            precision=settings.precision,
            states=settings.states,
            parameters_of_all=sum(shard.shape.numel() for shard in self.trained),
        )
        self._scored: _Scored | None = None

    def reference_logprobs(self, rows: Sequence[Row], rule: MicroBatchRule) -> Tensor:
        """Log-probs (N, T) of the reference policy, on every rank."""
        assert self._reference_forward is not None
        logprobs_NT = blank(rows, self._group.device)
        for part in self._parts(rows, rule):
            scored = self._reference_forward.score([rows[i] for i in part] or [_EMPTY])
            if part:
                logprobs_NT[places_of(rows, part, self._group.device)] = scored.logprobs_M
        return self._group.add_up(logprobs_NT)

    def score(self, rows: Sequence[Row], rule: MicroBatchRule) -> TokenScores:
        """Log-probs and values of the batch, on every rank."""
        device = self._group.device
        mine = self._parts(rows, rule)
        # Log-probs, normalizers, values and their averages: each rank writes its rows, the others' are zero.
        found_4NT = torch.stack([blank(rows, device)] * 4)
        kept: ScoredRows | None = None
        for number, part in enumerate(mine):
            kept = self._forward.score(
                [rows[i] for i in part] or [_EMPTY],
                graph=number == len(mine) - 1,
                checkpointing=rule.checkpointing,
            )
            if not part:
                continue
            n, t = places_of(rows, part, device)
            found_4NT[0, n, t], found_4NT[1, n, t] = kept.logprobs_M, kept.normalizers_M
            if self._value is not None:
                assert kept.hidden_MH is not None, "checked at the start"
                found_4NT[2, n, t] = self._value.values(kept.hidden_MH).detach()
                found_4NT[3, n, t] = self._value.average(kept.hidden_MH)
        assert kept is not None
        logprobs_NT, normalizers_NT, values_NT, average_NT = self._group.add_up(found_4NT)
        self._scored = _Scored(rows, rule, kept, normalizers_NT)
        return TokenScores(logprobs_NT, None if self._value is None else TokenValues(values_NT, average_NT))

    def push(self, coefficients_NT: Tensor, value_coefficients_NT: Tensor | None) -> None:
        """Add the gradient over the batch scored last to this rank's part."""
        scored, self._scored = self._scored, None
        assert scored is not None, "a batch is scored before its coefficients are pushed, once"
        device, rows, rule, normalizers_NT = self._group.device, scored.rows, scored.rule, scored.normalizers_NT
        coefficients_NT = coefficients_NT.to(device)
        value_NT = torch.zeros_like(coefficients_NT)
        if value_coefficients_NT is not None:
            value_NT = value_coefficients_NT.to(device)
        live = live_rows(coefficients_NT, value_NT)
        lengths = [row_tokens(row) for row in rows]
        last = [parts[-1] for parts in split(lengths, tokens=rule.tokens, ranks=self._group.ranks)]
        waiting = [i for i in range(len(rows)) if live[i]]
        if keeps_last(last, live, share=KEEP_SHARE):
            self._push(scored.kept, rows, last[self._group.rank], coefficients_NT, value_NT)
            used = {i for part in last for i in part}
            waiting = [i for i in waiting if i not in used]
        else:
            self._model.begin_again()
        del scored
        if waiting:
            chosen = split([lengths[i] for i in waiting], tokens=rule.tokens, ranks=self._group.ranks)
            for part in chosen[self._group.rank]:
                self._push_again(rows, [waiting[i] for i in part], rule, normalizers_NT, coefficients_NT, value_NT)
        self._take_gradients()

    def _take_gradients(self) -> None:
        for shard in self.trained:  # a batch without advantages has zeros, as it has on one rank
            gradient = shard.gradient
            shard.local.grad = torch.zeros_like(shard.local) if gradient is None else gradient

    def _push_again(
        self,
        rows: Sequence[Row],
        part: Sequence[int],
        rule: MicroBatchRule,
        normalizers_NT: Tensor,
        coefficients_NT: Tensor,
        value_NT: Tensor,
    ) -> None:
        known_M = torch.zeros(1, device=self._group.device)
        if part:
            known_M = normalizers_NT[places_of(rows, part, self._group.device)]
        again = self._forward.score(
            [rows[i] for i in part] or [_EMPTY], graph=True, checkpointing=rule.checkpointing, normalizers_M=known_M
        )
        self._push(again, rows, part, coefficients_NT, value_NT)

    def _push(
        self, scored: ScoredRows, rows: Sequence[Row], part: Sequence[int], coefficients_NT: Tensor, value_NT: Tensor
    ) -> None:
        device = self._group.device
        coefficients_M, value_M = torch.zeros(1, device=device), torch.zeros(1, device=device)
        if part:
            places = places_of(rows, part, device)
            coefficients_M, value_M = coefficients_NT[places], value_NT[places]
        extra_MH = None
        if self._value is not None:
            assert scored.hidden_MH is not None, "checked at the start"
            extra_MH = self._value.backward(scored.hidden_MH, value_M)
        self._forward.backward(scored, coefficients_M, extra_gradient_MH=extra_MH)

    def forget(self) -> None:
        """Free gradients and graphs."""
        if self._scored is not None:
            self._scored = None
            self._model.begin_again()
        for shard in self.trained:
            shard.parameter.grad = shard.local.grad = None
        if self._value is not None:
            self._value.zero_gradients()

    def clip(self, most: float) -> GradientNorms:
        """Scale the gradient down; norms are of the whole gradient, equal on every rank."""
        gradients = [shard.local.grad for shard in self.trained if shard.local.grad is not None]
        squares = torch.stack([gradient.float().square().sum(dtype=torch.float64) for gradient in gradients]).sum()
        norm = self._group.add_up(squares).sqrt().float()
        factor = (most / (norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factor.to(gradient.dtype))
        if self._value is None:
            return GradientNorms(norm)
        for parameter in self._value.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            self._group.add_up(parameter.grad)
        return GradientNorms(norm, torch.nn.utils.clip_grad_norm_(self._value.parameters, most))

    def step(self, learning_rate: float, *, value_factor: float, number: int) -> None:
        """One optimizer step on this rank's part."""
        self._model.reshard()
        self._optimizer.step(learning_rate, number=number)
        if self._value is not None:
            self._value.step(value_factor)
        self.forget()
        reference = self._settings.reference
        if reference is not None and reference.ema_rate > 0:
            policy = [shard.local for shard in self.trained]
            ema_update([shard.local for shard in self.reference], policy, rate=reference.ema_rate)

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """This rank's rows of the optimizer's state, and its numbers, by their names in a checkpoint."""
        return self._optimizer.tensors()

    def value_tensors(self) -> Mapping[str, Tensor] | None:
        """The value head, which every rank has whole."""
        return None if self._value is None else self._value.tensors()

    def restore(self, directory: Path) -> None:
        """Read this rank's rows of a checkpoint's state."""
        with ExitStack() as files:
            saved = files.enter_context(safe_open(directory / OPTIMIZER_FILE, framework="pt"))
            rows = {str(i): shard for i, shard in enumerate(self.trained)}
            names = saved.keys()
            self._optimizer.restore({name: self._rows_of(saved, name, rows[name.partition(".")[0]]) for name in names})
            if self.reference and (path := directory / REFERENCE_FILE).exists():
                saved = files.enter_context(safe_open(path, framework="pt"))
                with torch.no_grad():
                    for i, shard in enumerate(self.reference):
                        shard.local.copy_(self._rows_of(saved, str(i), shard))
        value = load_value(directory)
        if self._value is not None and value is not None:
            self._value.restore(value)

    def _rows_of(self, saved: Any, name: str, shard: Shard) -> Tensor:
        """This rank's rows of a saved tensor; a number is whole on every rank."""
        piece = saved.get_slice(name)
        if tuple(piece.get_shape()) != tuple(shard.shape):
            whole: Tensor = saved.get_tensor(name)
            return whole
        each = -(-shard.shape[0] // self._group.ranks)
        start = min(self._group.rank * each, shard.shape[0])
        rows: Tensor = piece[start : start + shard.local.shape[0]]
        return rows

    def _parts(self, rows: Sequence[Row], rule: MicroBatchRule) -> list[list[int]]:
        """This rank's micro-batches."""
        lengths = [row_tokens(row) for row in rows]
        return split(lengths, tokens=rule.tokens, ranks=self._group.ranks)[self._group.rank]


class _Scored:
    """A scored batch, with the graph of this rank's last micro-batch."""

    def __init__(self, rows: Sequence[Row], rule: MicroBatchRule, kept: ScoredRows, normalizers_NT: Tensor) -> None:
        self.rows = rows
        self.rule = rule
        self.kept = kept
        self.normalizers_NT = normalizers_NT
