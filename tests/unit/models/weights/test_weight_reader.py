"""Tensors read by name from weight bytes."""

from __future__ import annotations

import pytest
import torch

from p2prl.errors import IntegrityError
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.weights.layout import flatten, layout_of
from p2prl.models.weights.reader import WeightReader


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_tensors_and_their_rows_are_the_models(dtype: str) -> None:
    model = tiny_model(seed=3).model
    layout = layout_of(model, dtype)
    reader = WeightReader(layout, bytes(flatten(model, layout)))
    held = {name: tensor.to(getattr(torch, dtype)) for name, tensor in model.state_dict().items()}
    read = dict(reader)
    assert list(read) == [spec.name for spec in layout.tensors]
    for name, tensor in read.items():
        assert reader.shape(name) == tensor.shape
        assert torch.equal(tensor, held[name])
        assert torch.equal(reader.rows(name, 1, 3), held[name][1:3])
    assert "lm_head.weight" not in read  # tied, so it is not in the layout


def test_bytes_of_another_length_are_refused_and_a_copy_is_given() -> None:
    model = tiny_model().model
    layout = layout_of(model, "float32")
    weights = flatten(model, layout)
    name = layout.tensors[0].name
    WeightReader(layout, weights).tensor(name).zero_()
    assert WeightReader(layout, weights).tensor(name).any()
    with pytest.raises(IntegrityError, match="do not fill"):
        WeightReader(layout, weights[:-1])
