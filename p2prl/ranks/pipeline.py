"""A policy whose layers and words are dealt among the stages of a pipeline.

Coefficients are known before the backward pass, and so are the hidden states that log-probs were computed from. So the
head's gradient is computed by all stages at once, each for its words, before micro-batches go through the layers: one
forward, one backward at a time, as in PipeDream (arXiv 2006.09503). Every rank knows the shape of every micro-batch
from the rows alone, so none is padded to another's.

Shapes: N rows, T tokens, L tokens of the longest of a micro-batch, K input tokens, M completion tokens, H hidden size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from p2prl.learner.training.micro_batches import MicroBatchRule
from p2prl.learner.training.policy_gradient import blank, live_rows, row_tokens
from p2prl.learner.training.value_head import ValueHead
from p2prl.models.logprobs.policy_forward import Batch, Row, checkpointed, padded
from p2prl.ranks.pipeline_stages import Stage
from p2prl.ranks.process_group import RankMesh, Sending
from p2prl.ranks.rank_policy import EMPTY_ROW, Found, PolicySettings
from p2prl.ranks.sharded_model import checkpointing_layers
from p2prl.ranks.shares import split


class PipelinePolicy:
    """A `RankPolicy` of stages."""

    def __init__(self, model: Any, mesh: RankMesh, settings: PolicySettings, value: ValueHead | None = None) -> None:
        """`model` is one that `check_stages` passes; every rank holds all of it when it begins."""
        self._mesh = mesh
        self._value = value
        self._stage = Stage(model, mesh, settings)
        self._width: int = self._stage.words.embedding.shape[1]
        self._dtype = self._stage.words.embedding.dtype
        self._trains_words = any(each.requires_grad for each in self._stage.words.parameters())
        self._layers = checkpointing_layers(self._stage.layers)
        self.shards = self._stage.shards
        self._scored: _Scored | None = None

    def logprobs(self, rows: Sequence[Row], rule: MicroBatchRule) -> Tensor:
        parts = self._parts(rows, rule)
        logprobs_M, _, _ = self._score(rows, parts)
        return self._mesh.add_up_data(_at_places(rows, parts, logprobs_M))

    def score(self, rows: Sequence[Row], rule: MicroBatchRule) -> Found:
        parts = self._parts(rows, rule)
        logprobs_M, normalizers_M, hidden_MH = self._score(rows, parts)
        columns = [logprobs_M, normalizers_M]
        if self._value is not None:
            columns += [self._value.values(hidden_MH).detach(), self._value.average(hidden_MH)]
        found_CNT = torch.stack([_at_places(rows, parts, column) for column in columns])
        logprobs_NT, normalizers_NT, *values = self._mesh.add_up_data(found_CNT)
        self._scored = _Scored(rows, rule, hidden_MH, _spans(rows, parts), normalizers_NT)
        values_NT, average_NT = values or [torch.zeros_like(logprobs_NT)] * 2
        return Found(logprobs_NT, values_NT, average_NT)

    def push(self, coefficients_NT: Tensor, value_NT: Tensor) -> None:
        scored, self._scored = self._scored, None
        assert scored is not None, "a batch is scored before its coefficients are pushed, once"
        rows, live = scored.rows, live_rows(coefficients_NT, value_NT)
        if not any(live):
            return
        parts = self._parts(rows, scored.rule, live)
        gradient_MH = self._push_head(scored, parts, coefficients_NT, value_NT)
        batches = [_batch(rows, part, self._mesh.device) for part in parts]
        seeds = torch.split(gradient_MH, [len(batch.tokens_M) for batch in batches])
        inputs = self._embed(batches)
        if self._mesh.is_first and self._trains_words:
            for each in inputs:
                each.requires_grad_()
        with checkpointed(self._layers if scored.rule.checkpointing else ()):
            self._train(batches, inputs, seeds)
        if self._trains_words:
            self._push_embedding(batches, inputs)

    def forget(self) -> None:
        self._scored = None

    def before_step(self) -> None:
        self._stage.sharded.reshard()

    def _parts(self, rows: Sequence[Row], rule: MicroBatchRule, live: Sequence[bool] | None = None) -> list[list[int]]:
        """Micro-batches of this pipeline, whose hidden states of scored rows no other has."""
        mesh, lengths = self._mesh, [row_tokens(row) for row in rows]
        return split(lengths, tokens=rule.tokens, ranks=mesh.data, stages=mesh.stages, live=live)[mesh.data_index]

    def _score(self, rows: Sequence[Row], parts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probs (M,), normalizers (M,) and hidden states (M, H) of micro-batches, one after the other."""
        mesh = self._mesh
        batches = [_batch(rows, part, mesh.device) for part in parts]
        tokens_M = torch.cat([batch.tokens_M for batch in batches])
        hidden: list[Tensor] = []
        sent: list[Sending] = []
        with torch.no_grad():
            inputs = self._embed(batches)
            for number, batch in enumerate(batches):
                before = inputs[number] if mesh.is_first else self._receive(batch, mesh.stage - 1)
                after_NLH = self._stage.layers(before)
                if mesh.is_last:
                    hidden.append(after_NLH.flatten(0, 1)[batch.places_M])
                else:
                    sent.append(mesh.begin_send(after_NLH, mesh.stage + 1))
            for each in sent:
                each.wait()
            found_MH = torch.cat(hidden).float() if mesh.is_last else torch.empty(len(tokens_M), self._width)
            hidden_MH = mesh.from_stage(found_MH, mesh.stages - 1)
            logits_M, sums_M = self._stage.words(tokens_M, hidden_MH)
            normalizers_M = mesh.of_stages(sums_M).logsumexp(dim=0)
            return mesh.add_up_stages(logits_M) - normalizers_M, normalizers_M, hidden_MH

    def _push_head(
        self, scored: _Scored, parts: Sequence[Sequence[int]], coefficients_NT: Tensor, value_NT: Tensor
    ) -> Tensor:
        """Add the head's gradient; returns that towards the hidden states, (M, H), which only the last stage has."""
        mesh = self._mesh
        hidden, tokens, columns = [], [], []
        for part in parts:
            for i in part:
                count = len(scored.rows[i][1])
                hidden.append(scored.hidden_MH[scored.spans[i]])
                tokens.append(torch.tensor([int(token) for token in scored.rows[i][1]]))
                kept = (scored.normalizers_NT, coefficients_NT, value_NT)
                columns.append(torch.stack([each[i, :count] for each in kept]))
            if not part:  # a row that counts for nothing
                hidden.append(torch.zeros(1, self._width))
                tokens.append(torch.zeros(1, dtype=torch.long))
                columns.append(torch.tensor([[torch.inf], [0.0], [0.0]]))
        leaf_MH = torch.cat(hidden).requires_grad_()
        normalizers_M, coefficients_M, value_M = torch.cat(columns, dim=1)
        (logprobs_M,) = self._stage.words(torch.cat(tokens), leaf_MH, normalizers_M)
        torch.autograd.backward(logprobs_M, coefficients_M)
        assert leaf_MH.grad is not None
        gradient_MH = mesh.add_up_at(leaf_MH.grad, mesh.stages - 1)
        if self._value is not None:
            extra_MH = self._value.backward(leaf_MH, value_M)  # the head's own part is the same on every stage
            gradient_MH = gradient_MH + extra_MH
        return gradient_MH.to(self._dtype)

    def _train(self, batches: Sequence[Batch], inputs: Sequence[Tensor], seeds: Sequence[Tensor]) -> None:
        """Send all micro-batches forth and back, at most as many at once as there are stages from here on."""
        mesh = self._mesh
        ahead = min(mesh.stages - 1 - mesh.stage, len(batches))
        flying: deque[tuple[Tensor, Tensor]] = deque()
        sent: list[Sending] = []
        for number in range(len(batches) + ahead):
            if number < len(batches):
                batch = batches[number]
                before = inputs[number]
                if not mesh.is_first:
                    before = self._receive(batch, mesh.stage - 1).requires_grad_()
                after = self._stage.layers(before)
                if mesh.is_last:
                    after = after.flatten(0, 1)[batch.places_M]
                else:
                    sent.append(mesh.begin_send(after.detach(), mesh.stage + 1))
                flying.append((before, after))
            if number >= ahead:
                batch, (before, after) = batches[number - ahead], flying.popleft()
                seed = seeds[number - ahead] if mesh.is_last else self._receive(batch, mesh.stage + 1)
                torch.autograd.backward(after, seed)
                if not mesh.is_first:
                    assert before.grad is not None
                    sent.append(mesh.begin_send(before.grad, mesh.stage - 1))
        for each in sent:
            each.wait()

    def _embed(self, batches: Sequence[Batch]) -> list[Tensor]:
        """Embeddings (N, L, H) of every micro-batch, on the first stage; the others have none."""
        with torch.no_grad():
            (found_KH,) = self._stage.words(_inputs(batches))
            found_KH = self._mesh.add_up_at(found_KH.float(), 0).to(self._dtype)
        shapes = [batch.inputs["input_ids"].shape for batch in batches]
        pieces = torch.split(found_KH, [shape.numel() for shape in shapes])
        return [piece.reshape(*shape, -1) for piece, shape in zip(pieces, shapes, strict=True)]

    def _push_embedding(self, batches: Sequence[Batch], inputs: Sequence[Tensor]) -> None:
        """Add the embedding's gradient, known to the first stage, to every stage's words."""
        ids_K = _inputs(batches)
        gradient_KH = torch.empty(len(ids_K), self._width)
        if self._mesh.is_first:
            torch.cat([_gradient(each).flatten(0, 1).float() for each in inputs], out=gradient_KH)
        self._mesh.from_stage(gradient_KH, 0)
        (found_KH,) = self._stage.words(ids_K)
        torch.autograd.backward(found_KH, gradient_KH.to(self._dtype))

    def _receive(self, batch: Batch, stage: int) -> Tensor:
        """Hidden states of a micro-batch, or their gradient, from another stage."""
        shape = (*batch.inputs["input_ids"].shape, self._width)
        return self._mesh.receive(torch.empty(shape, dtype=self._dtype), stage)


@dataclass(frozen=True, slots=True)
class _Scored:
    """A scored batch, with the hidden states of this pipeline's rows."""

    rows: Sequence[Row]
    rule: MicroBatchRule
    hidden_MH: Tensor
    spans: dict[int, slice]
    """Where the hidden states of a row are."""
    normalizers_NT: Tensor


def _batch(rows: Sequence[Row], part: Sequence[int], device: torch.device) -> Batch:
    return padded([rows[i] for i in part] or [EMPTY_ROW], device)


def _inputs(batches: Sequence[Batch]) -> Tensor:
    return torch.cat([batch.inputs["input_ids"].flatten() for batch in batches])


def _gradient(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None
    return tensor.grad


def _spans(rows: Sequence[Row], parts: Sequence[Sequence[int]]) -> dict[int, slice]:
    """Where the completion of each row is among those of micro-batches; an empty one has a token."""
    spans, start = {}, 0
    for part in parts:
        for i in part:
            spans[i] = slice(start, start + len(rows[i][1]))
            start = spans[i].stop
        start += not part
    return spans


def _at_places(rows: Sequence[Row], parts: Sequence[Sequence[int]], values_M: Tensor) -> Tensor:
    """Values of micro-batches as (N, T), zero elsewhere."""
    values_NT = blank(rows, values_M.device)
    for i, span in _spans(rows, parts).items():
        values_NT[i, : span.stop - span.start] = values_M[span]
    return values_NT
