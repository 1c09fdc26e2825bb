"""A policy whose rows are dealt among the ranks, each of which runs all layers. Weights are gathered as they are used.

Shapes: N rows, T tokens, M completion tokens of some rows, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from p2prl.learner.training.micro_batches import MicroBatchRule
from p2prl.learner.training.policy_gradient import (
    KEEP_SHARE,
    blank,
    check_value_head,
    live_rows,
    places_of,
    row_tokens,
)
from p2prl.learner.training.value_head import ValueHead
from p2prl.models.logprobs.policy_forward import PolicyForward, Row, ScoredRows
from p2prl.models.logprobs.scoring_model import ScoringModel
from p2prl.ranks.process_group import RankMesh
from p2prl.ranks.rank_policy import EMPTY_ROW, Found, PolicySettings
from p2prl.ranks.sharded_model import Held, ShardedModules, shard_of
from p2prl.ranks.shares import keeps_last, split


class DataParallelPolicy:
    """A `RankPolicy` of whole models."""

    def __init__(self, model: Any, mesh: RankMesh, settings: PolicySettings, value: ValueHead | None = None) -> None:
        """Every rank holds all of `model` when it begins, and its part of it from then on."""
        self._mesh = mesh
        self._value = value
        scoring = ScoringModel(model, temperature=settings.temperature, autocast=settings.autocast)
        if value is not None:
            check_value_head(scoring)
        self._sharded = ShardedModules([scoring], mesh, zero=settings.zero)
        self._forward = PolicyForward(scoring)
        self.shards = [shard_of(Held(name, each.shape), each, mesh) for name, each in model.named_parameters()]
        self._scored: _Scored | None = None

    def logprobs(self, rows: Sequence[Row], rule: MicroBatchRule) -> Tensor:
        logprobs_NT = blank(rows, self._mesh.device)
        for part in self._parts(rows, rule)[self._mesh.data_index]:
            scored = self._forward.score([rows[i] for i in part] or [EMPTY_ROW])
            if part:
                logprobs_NT[places_of(rows, part, self._mesh.device)] = scored.logprobs_M
        return self._mesh.add_up_data(logprobs_NT)

    def score(self, rows: Sequence[Row], rule: MicroBatchRule) -> Found:
        device = self._mesh.device
        mine = self._parts(rows, rule)[self._mesh.data_index]
        # Log-probs, normalizers, values and their averages: each rank writes its rows, the others' are zero.
        found_4NT = torch.stack([blank(rows, device)] * 4)
        kept: ScoredRows | None = None
        for number, part in enumerate(mine):
            kept = self._forward.score(
                [rows[i] for i in part] or [EMPTY_ROW],
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
        logprobs_NT, normalizers_NT, values_NT, average_NT = self._mesh.add_up_data(found_4NT)
        self._scored = _Scored(rows, rule, kept, normalizers_NT)
        return Found(logprobs_NT, values_NT, average_NT)

    def push(self, coefficients_NT: Tensor, value_NT: Tensor) -> None:
        scored, self._scored = self._scored, None
        assert scored is not None, "a batch is scored before its coefficients are pushed, once"
        rows, rule, normalizers_NT = scored.rows, scored.rule, scored.normalizers_NT
        live = live_rows(coefficients_NT, value_NT)
        last = [parts[-1] for parts in self._parts(rows, rule)]
        waiting = [i for i in range(len(rows)) if live[i]]
        if keeps_last(last, live, share=KEEP_SHARE):
            self._push(scored.kept, rows, last[self._mesh.data_index], coefficients_NT, value_NT)
            used = {i for part in last for i in part}
            waiting = [i for i in waiting if i not in used]
        else:
            self._sharded.begin_again()
        del scored
        if waiting:
            chosen = self._parts([rows[i] for i in waiting], rule)
            for part in chosen[self._mesh.data_index]:
                self._push_again(rows, [waiting[i] for i in part], rule, normalizers_NT, coefficients_NT, value_NT)

    def forget(self) -> None:
        if self._scored is not None:
            self._scored = None
            self._sharded.begin_again()

    def before_step(self) -> None:
        self._sharded.reshard()

    def _push_again(
        self,
        rows: Sequence[Row],
        part: Sequence[int],
        rule: MicroBatchRule,
        normalizers_NT: Tensor,
        coefficients_NT: Tensor,
        value_NT: Tensor,
    ) -> None:
        known_M = torch.full((1,), torch.inf, device=self._mesh.device)  # of a row that counts for nothing
        if part:
            known_M = normalizers_NT[places_of(rows, part, self._mesh.device)]
        again = self._forward.score(
            [rows[i] for i in part] or [EMPTY_ROW], graph=True, checkpointing=rule.checkpointing, normalizers_M=known_M
        )
        self._push(again, rows, part, coefficients_NT, value_NT)

    def _push(
        self, scored: ScoredRows, rows: Sequence[Row], part: Sequence[int], coefficients_NT: Tensor, value_NT: Tensor
    ) -> None:
        device = self._mesh.device
        coefficients_M, value_M = torch.zeros(1, device=device), torch.zeros(1, device=device)
        if part:
            places = places_of(rows, part, device)
            coefficients_M, value_M = coefficients_NT[places], value_NT[places]
        extra_MH = None
        if self._value is not None:
            assert scored.hidden_MH is not None, "checked at the start"
            extra_MH = self._value.backward(scored.hidden_MH, value_M)
        self._forward.backward(scored, coefficients_M, extra_gradient_MH=extra_MH)

    def _parts(self, rows: Sequence[Row], rule: MicroBatchRule) -> list[list[list[int]]]:
        """Micro-batches of every rank."""
        return split([row_tokens(row) for row in rows], tokens=rule.tokens, ranks=self._mesh.data)


@dataclass(frozen=True, slots=True)
class _Scored:
    """A scored batch, with the graph of this rank's last micro-batch."""

    rows: Sequence[Row]
    rule: MicroBatchRule
    kept: ScoredRows
    normalizers_NT: Tensor
