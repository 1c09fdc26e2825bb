"""Logits read straight from weight bytes equal those of the model that holds the weights, for every architecture."""

from __future__ import annotations

import pytest
import torch

from p2prl.models.pretrained import LoadedModel
from p2prl.models.reference_logits import ReferenceLogits
from p2prl.models.run_file_checks import ARCHITECTURES
from p2prl.models.run_files import export_run_files
from p2prl.models.run_model import read_run_model
from p2prl.models.tiny_models import tiny_model
from p2prl.models.weight_layout import flatten, layout_of
from tests.unit.models.test_architectures import _model

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.mark.parametrize("kind", sorted(ARCHITECTURES))
def test_logits_are_those_of_the_model_that_holds_the_weights(kind: str) -> None:
    model = _model(kind)
    layout = layout_of(model, "float32")
    files = export_run_files(LoadedModel(model=model, tokenizer=tiny_model().tokenizer))
    run = read_run_model(files, layout_digest=layout.digest, max_weight_bytes=1 << 24, dtype="float32")
    reference = ReferenceLogits(run, dtype="float32")
    made = reference.logits(bytes(flatten(model, layout)), PROMPT)
    with torch.inference_mode():
        held = model(input_ids=torch.tensor([PROMPT])).logits[0, -1]
        torch.testing.assert_close(made, held, atol=1e-4, rtol=1e-4)

        for parameter in model.parameters():
            parameter.mul_(0.9)
        assert not torch.allclose(reference.logits(flatten(model, layout), PROMPT), held, atol=1e-2)
