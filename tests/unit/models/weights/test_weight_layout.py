"""Weights to bytes and back: order, dtypes, ties, and what is refused before memory is touched."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from torch import nn

from p2prl.errors import ConfigError, IntegrityError
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.weights import layout as layout_module
from p2prl.models.weights.layout import WeightLayout, check_weights, copy_weights, flatten, layout_of, weights_digest
from p2prl.protocol.digests import chunk_digest
from p2prl.protocol.manifests import TensorSpec


def load(model: nn.Module, layout: WeightLayout, weights: bytes | bytearray) -> None:
    """Check weights, then copy them, as an engine does."""
    check_weights(model, layout, weights)
    copy_weights(model, layout, weights)


class _Toy(nn.Module):
    """Two tensors, a tie and a saved buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Parameter(torch.tensor([[1.0, -2.0], [0.5, 3.0]]))
        self.head = self.embed
        self.bias = nn.Parameter(torch.tensor([7.0]))
        self.register_buffer("scale", torch.tensor([0.25, 0.125]))
        self.register_buffer("scratch", torch.tensor([9.0]), persistent=False)


def test_bytes_in_layout_order_little_endian() -> None:
    toy = _Toy()
    layout = layout_of(toy, "float32")
    assert layout.tensors == (
        TensorSpec("embed", "float32", (2, 2)),
        TensorSpec("bias", "float32", (1,)),
        TensorSpec("scale", "float32", (2,)),
    )
    words = [1.0, -2.0, 0.5, 3.0, 7.0, 0.25, 0.125]
    assert bytes(flatten(toy, layout)) == np.array(words, dtype="<f4").tobytes()
    assert (layout.size_bytes, layout.parameters) == (28, 7)


def test_bfloat16_is_the_upper_half_of_a_float() -> None:
    toy = _Toy()
    data = flatten(toy, layout_of(toy, "bfloat16"))
    words = np.array([1.0, -2.0, 0.5, 3.0, 7.0, 0.25, 0.125], dtype="<f4").view("<u4") >> 16
    assert bytes(data) == words.astype("<u2").tobytes()
    assert bytes(flatten(toy, layout_of(toy, "float16")))[:4] == np.array([1.0, -2.0], dtype="<f2").tobytes()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_where_words_begin_with_their_high_byte_each_is_turned_round(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = _Toy()
    layout = layout_of(toy, dtype)
    here = np.frombuffer(flatten(toy, layout), dtype=layout_module.NUMPY_WORDS[dtype])
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(sys, "byteorder", "little" if sys.byteorder == "big" else "big")
        there = bytes(flatten(toy, layout))
    assert there == here.byteswap().tobytes() != here.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_loading_writes_in_place(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_module, "_BLOCK_WORDS", 1000)  # no tensor of the model is a whole number of blocks
    source, target = tiny_model(seed=1).model, tiny_model(seed=2).model
    layout = layout_of(source, dtype)
    data = flatten(source, layout)
    addresses = [p.data_ptr() for p in target.parameters()]
    load(target, layout, bytes(data))
    assert [p.data_ptr() for p in target.parameters()] == addresses
    assert target.lm_head.weight is target.transformer.wte.weight
    for ours, theirs in zip(target.parameters(), source.parameters(), strict=True):
        rounded = theirs.detach().to(layout_module.TORCH_DTYPES[dtype]).float()
        assert torch.equal(ours.detach(), rounded)
    assert flatten(target, layout) == data


def test_meta_device_gives_the_same_layout() -> None:
    model = tiny_model().model
    with torch.device("meta"):
        ghost = type(model)(model.config)
    assert layout_of(ghost, "float32") == layout_of(model, "float32")
    names = [spec.name for spec in layout_of(model, "float32").tensors]
    assert "lm_head.weight" not in names
    assert len(set(names)) == len(names)


def test_digests_of_layout_and_bytes() -> None:
    toy = _Toy()
    layout = layout_of(toy, "float32")
    assert layout.digest != layout_of(toy, "float16").digest
    assert layout.digest != WeightLayout(layout.tensors[::-1]).digest
    data = flatten(toy, layout)
    assert weights_digest(data) == weights_digest(memoryview(data)) == chunk_digest(bytes(data))


def _altered(layout: WeightLayout, index: int, **fields: object) -> WeightLayout:
    spec = layout.tensors[index]
    values = {"name": spec.name, "dtype": spec.dtype, "shape": spec.shape} | fields
    return WeightLayout((*layout.tensors[:index], TensorSpec(**values), *layout.tensors[index + 1 :]))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("index", "fields", "message"),
    [
        (0, {"name": "other"}, "but the model has"),
        (0, {"shape": (4,)}, "but the model has"),
        (1, {"name": "embed"}, "twice"),
        (1, {"dtype": "int8"}, "unknown dtype"),
        (1, {"shape": (0,)}, "shape"),
        (1, {"shape": (-1,)}, "shape"),
        (1, {"shape": (1,) * 9}, "shape"),
    ],
)
def test_other_layouts_are_refused(index: int, fields: dict[str, object], message: str) -> None:
    toy = _Toy()
    layout = layout_of(toy, "float32")
    with pytest.raises(IntegrityError, match=message):
        load(toy, _altered(layout, index, **fields), bytes(layout.size_bytes))


def test_unfit_bytes_leave_the_model() -> None:
    toy = _Toy()
    layout = layout_of(toy, "float32")
    before = flatten(toy, layout)
    infinite = np.array([0, 0, 0, 0, 0, 0, np.nan], dtype="<f4").tobytes()
    for data in (bytes(27), bytes(29), b"", infinite, infinite.replace(b"\xc0\x7f", b"\x80\x7f")):
        with pytest.raises(IntegrityError):
            load(toy, layout, data)
        assert flatten(toy, layout) == before
    with pytest.raises(IntegrityError, match="2 tensors"):
        load(toy, WeightLayout(layout.tensors[:2]), bytes(20))
    with pytest.raises(IntegrityError, match="outside"):
        load(toy, WeightLayout(()), b"")


def test_integer_weights_are_refused() -> None:
    toy = _Toy()
    toy.register_buffer("count", torch.tensor([1]))
    with pytest.raises(ConfigError, match="count"):
        layout_of(toy, "float32")
    with pytest.raises(ConfigError, match="int8"):
        layout_of(_Toy(), "int8")
