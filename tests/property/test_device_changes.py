"""Changes found on the device: the words that numpy and the patch codec find, written back bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from p2prl.models.engines.transformers.device_changes import Changes, Comparison
from p2prl.models.weights.layout import TORCH_DTYPES
from p2prl.patches.ec2 import decode_ec2_both_ways, encode_ec2
from p2prl.patches.kernel_choice import fastest_kernels
from p2prl.patches.kernels import NUMPY_KERNELS
from p2prl.patches.words import Words, WordType
from p2prl_lab.testing.patch_properties import Version, versions
from tests.devices import DEVICES


def weights_of(words: Words, word_type: WordType, device: str) -> torch.Tensor:
    return torch.from_numpy(words.copy()).view(TORCH_DTYPES[word_type.name]).to(device)


def bits_of(weights: torch.Tensor) -> bytes:
    return weights.cpu().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("device", DEVICES)
@given(case=versions())
@settings(max_examples=30, deadline=None)
def test_the_device_finds_and_writes_what_the_patch_codec_does(device: str, case: Version) -> None:
    word_type, old, new = case
    assume(len(old))  # a tensor has weights
    held = weights_of(old, word_type, device)
    changes = Changes.between(held, weights_of(new, word_type, device))
    positions = changes.positions.cpu().numpy()
    assert np.array_equal(positions, np.flatnonzero(old != new))
    assert changes.words.cpu().numpy().view(word_type.dtype).tobytes() == new[positions].tobytes()
    body = memoryview(encode_ec2(old, new, word_type, NUMPY_KERNELS))
    for kernels in (NUMPY_KERNELS, fastest_kernels()):
        applied = decode_ec2_both_ways(old, body, word_type, kernels)
        assert np.array_equal(np.sort(applied.places), positions)
    assert changes.are_in(held) == (old.tobytes() == new.tobytes())
    changes.write(held)
    assert bits_of(held) == new.tobytes()
    assert changes.are_in(held)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6))
def test_a_comparison_gives_up_beyond_its_share(changed: list[int]) -> None:
    held = [torch.zeros(100) for _ in changed]
    comparison = Comparison(100 * len(changed))
    for piece, count in zip(held, changed, strict=True):
        comparison.add(piece, (torch.arange(100) < count).bfloat16())
    pieces = comparison.pieces
    if sum(changed) > 100 * len(changed) // 32:
        assert pieces is None
        return
    assert pieces is not None
    assert [len(own.positions) for _, own in pieces] == [count for count in changed if count]
    for piece, own in pieces:
        own.write(piece)
    assert [int(piece.sum()) for piece in held] == changed


def test_a_comparison_that_is_given_up_finds_nothing() -> None:
    comparison = Comparison(1000)
    comparison.give_up()
    comparison.add(torch.zeros(1000), torch.zeros(1000))
    assert comparison.pieces is None
