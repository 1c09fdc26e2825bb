"""Logits read straight from weight bytes equal those of the model that holds the weights, for every architecture."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from p2prl.models.base_model.architectures import ARCHITECTURES
from p2prl.models.base_model.pretrained import LoadedModel
from p2prl.models.engines.vllm import reference_logits
from p2prl.models.engines.vllm.reference_logits import LogitCheck, ReferenceLogits
from p2prl.models.run_files.export import export_run_files
from p2prl.models.run_model import RunModel, read_run_model
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.weights.layout import WeightLayout, flatten, layout_of
from p2prl_lab.testing.small_architectures import small_model

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def run_of(model: Any) -> tuple[RunModel, WeightLayout]:
    layout = layout_of(model, "float32")
    files = export_run_files(LoadedModel(model=model, tokenizer=tiny_model().tokenizer))
    run = read_run_model(files, layout_digest=layout.digest, weight_bytes=layout.size_bytes, dtype="float32")
    return run, layout


@pytest.mark.parametrize("kind", sorted(ARCHITECTURES))
def test_logits_are_those_of_the_model_that_holds_the_weights(kind: str) -> None:
    model = small_model(kind)
    run, layout = run_of(model)
    reference = ReferenceLogits(run, dtype="float32")
    made = reference.logits(bytes(flatten(model, layout)), PROMPT)
    with torch.inference_mode():
        held = model(input_ids=torch.tensor([PROMPT])).logits[0, -1]
        torch.testing.assert_close(made, held, atol=1e-4, rtol=1e-4)

        for parameter in model.parameters():
            parameter.mul_(0.9)
        changed = reference.logits(flatten(model, layout), PROMPT)
        assert float((changed - held).square().mean().sqrt()) > 0.03 * float(held.std())


def test_large_matrices_are_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model("qwen2")
    run, layout = run_of(model)
    whole = ReferenceLogits(run, dtype="float32").logits(flatten(model, layout), PROMPT)
    monkeypatch.setattr(reference_logits, "_PIECE", 100)  # three rows, and a last piece of fewer
    pieces = ReferenceLogits(run, dtype="float32").logits(flatten(model, layout), PROMPT)
    torch.testing.assert_close(pieces, whole, atol=1e-6, rtol=1e-6)


def test_weights_are_rounded_as_the_engine_rounds_them() -> None:
    model = small_model("llama")
    run, layout = run_of(model)
    made = ReferenceLogits(run, dtype="bfloat16").logits(flatten(model, layout), PROMPT)
    with torch.inference_mode():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
        torch.testing.assert_close(made, model(input_ids=torch.tensor([PROMPT])).logits[0, -1], atol=1e-4, rtol=1e-4)


def test_rounding_is_accepted_and_a_stale_part_is_not() -> None:
    generator = torch.Generator().manual_seed(2)
    reference = 5 * torch.randn(1000, generator=generator)

    def off(error: float) -> torch.Tensor:
        return reference + 5 * error * torch.randn(1000, generator=generator)

    check = LogitCheck(dtype="float32")
    assert not check.accepts(off(2e-3), reference)
    assert check.accepts(off(5e-4), reference)  # the first: anything below what rounding could give
    assert check.accepts(off(1e-6), reference)
    assert not check.accepts(off(5e-5), reference)  # later: fifty times the last
    assert check.accepts(off(5e-6), reference)
    assert not check.accepts(off(3e-5), reference)
    assert check.accepts(off(1.5e-5), reference)
    assert check.accepts(off(3e-5), reference)
    assert not check.accepts(reference * float("nan"), reference)
    assert LogitCheck(dtype="bfloat16").accepts(off(2e-2).bfloat16(), reference)
    assert not LogitCheck(dtype="bfloat16").accepts(5 * torch.randn(1000, generator=generator), reference)
    assert check.accepts(torch.zeros(9), torch.zeros(9))
    assert not LogitCheck(dtype="float32").accepts(torch.ones(9), torch.zeros(9))
