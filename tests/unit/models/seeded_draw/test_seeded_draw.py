"""The seeded draw against its definition: logits / temperature plus `gumbel`, in torch, and the first arg-max."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from p2prl.errors import LocalProtocolError, MachineError
from p2prl.models.seeded_draw import compiled, draw, every_token, gumbel_noise, on_device
from p2prl.models.seeded_draw.gumbel_noise import gumbel, row_states
from p2prl.models.seeded_draw.rows import Floats, RowSettings, Scan

INF, NAN = float("inf"), float("nan")
CPU = torch.device("cpu")


def _defined(logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Noisy logits and log-probs, (N, V) each."""
    scaled = logits.float() / temperatures[:, None]
    return scaled + gumbel(seeds, positions[:, None], logits.shape[1])[:, 0], torch.log_softmax(scaled, dim=-1)


def _compiled(logits: Floats, rows: RowSettings) -> Scan:
    draws = compiled.Draws(rows, with_sums=True, threads=1)
    draws.add(logits, 0)
    return draws.result()


def _compiled_in_parts(logits: Floats, rows: RowSettings) -> Scan:
    """Three threads, and the vocabulary in parts of uneven width."""
    draws = compiled.Draws(rows, with_sums=True, threads=3)
    width = logits.shape[1] // 3 + 1
    for first in range(0, logits.shape[1], width):
        draws.add(np.ascontiguousarray(logits[:, first : first + width]), first)
    return draws.result()


def _every_token(logits: Floats, rows: RowSettings) -> Scan:
    return every_token.scan(logits, rows, with_sums=True)


def _on_device(logits: Floats, rows: RowSettings) -> Scan:
    return on_device.scan(torch.from_numpy(logits), rows, with_sums=True)


WAYS = (_compiled, _compiled_in_parts, _every_token, _on_device)


def _check(logits: Tensor, temperature: float, seeds: Tensor, positions: Tensor) -> None:
    """Every implementation gives the defined tokens, noisy logits and log-sums."""
    temperatures = torch.full((len(logits),), temperature)
    noisy, _ = _defined(logits, temperatures, seeds, positions)
    log_sums = torch.logsumexp(logits / temperatures[:, None], dim=-1)
    log_sums[noisy.amax(dim=-1).isinf()] = NAN
    rows = RowSettings(temperatures.numpy(), row_states(seeds.numpy(), positions.numpy()))
    for way in WAYS:
        made = way(logits.numpy(), rows)
        assert made.tokens.tolist() == noisy.argmax(dim=-1).tolist(), way
        assert np.array_equal(made.best, noisy.amax(dim=-1).numpy(), equal_nan=True), way
        finite = log_sums.isfinite()
        assert not np.isfinite(made.log_sums[~finite & (log_sums.isnan())]).any() or way is _on_device
        torch.testing.assert_close(torch.from_numpy(made.log_sums)[finite], log_sums[finite], rtol=2e-6, atol=5e-6)


def _seeded(count: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randint(0, (1 << 63) - 1, (count,), generator=generator),
        torch.randint(0, 40_000, (count,), generator=generator),
    )


@settings(max_examples=40, deadline=None)
@given(
    vocabulary=st.sampled_from([1, 2, 3, 17, 511, 512, 513, 4095, 4096, 4097, 9001]),
    spread=st.sampled_from([0.0, 1e-3, 1.0, 4.0, 60.0, 1e4]),
    temperature=st.sampled_from([1e-6, 0.1, 0.6, 1.0, 3.0, 1e6, 1e30]),
    infinite=st.sampled_from([0.0, 0.3, 0.999]),
    seed=st.integers(0, 1 << 30),
)
def test_draws_are_the_defined_ones(
    vocabulary: int, spread: float, temperature: float, infinite: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(4, vocabulary, generator=generator) * spread
    logits[torch.rand(4, vocabulary, generator=generator) < infinite] = -INF
    _check(logits, temperature, *_seeded(4, seed))


def test_draws_from_the_largest_vocabularies() -> None:
    for spread, temperature in ((2.0, 1.0), (6.0, 0.6), (0.0, 1.0)):
        logits = torch.randn(2, 151_936, generator=torch.Generator().manual_seed(1)) * spread
        _check(logits, temperature, *_seeded(2, 2))


@pytest.mark.parametrize("vocabulary", [40, 5000])
def test_ties_go_to_the_lowest_token(vocabulary: int) -> None:
    """At 1e8 the distance of two float32 is 8, so the noise is rounded to a few values that many tokens share."""
    _check(torch.full((6, vocabulary), 1e8), 1.0, *_seeded(6, 3))
    _check(torch.full((6, vocabulary), -3e37), 1e-1, *_seeded(6, 4))
    _check(torch.full((6, vocabulary), 3e38), 1.0, *_seeded(6, 5))


@pytest.mark.parametrize("vocabulary", [40, 5000])
def test_near_ties_at_the_rounding_of_float32(vocabulary: int) -> None:
    """Every token's logit is what lifts it to one noisy value, give or take a few units in the last place."""
    seeds, positions = _seeded(8, 6)
    for level in (0.0, 13.0, 1000.0):
        logits = level - gumbel(seeds, positions[:, None], vocabulary)[:, 0]
        units = torch.randint(-2, 3, logits.shape, generator=torch.Generator().manual_seed(7))
        _check((logits.view(torch.int32) + units).view(torch.float32), 1.0, seeds, positions)


def test_logits_that_are_infinite_or_not_numbers() -> None:
    for vocabulary in (40, 5000):
        logits = torch.randn(7, vocabulary, generator=torch.Generator().manual_seed(8))
        logits[0] = -INF
        logits[1] = INF
        logits[2, [7, 31]] = INF
        logits[3, [9, 30]] = NAN
        logits[4, 11], logits[4, 3] = -NAN, INF
        logits[5, :] = -INF
        logits[5, 21] = -3e38
        logits[6, ::2] = 3.4e38
        for temperature in (0.5, 1.0):
            _check(logits, temperature, *_seeded(7, 9))


def test_the_best_token_may_have_the_lowest_noise() -> None:
    seeds, positions = _seeded(6, 10)
    noise = gumbel(seeds, positions[:, None], 5000)[:, 0]
    logits = torch.zeros(6, 5000)
    rows = torch.arange(6)
    logits[rows, noise.argmin(dim=-1)] = 40.0
    logits[rows, noise.argmax(dim=-1)] = 40.0 + noise.amin(dim=-1) - noise.amax(dim=-1)
    _check(logits, 1.0, seeds, positions)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocabulary", [40, 5000])
def test_tokens_logprobs_and_margins(dtype: torch.dtype, vocabulary: int) -> None:
    logits = (torch.randn(9, vocabulary, generator=torch.Generator().manual_seed(11)) * 3).to(dtype)
    seeds, positions = _seeded(9, 12)
    temperatures = torch.linspace(0.3, 2, 9)
    noisy, logprobs = _defined(logits, temperatures, seeds, positions)
    drawn = noisy.argmax(dim=-1)
    targets = torch.where(torch.arange(9) % 2 == 0, drawn, (drawn + 17) % vocabulary)
    settings_of_rows = (temperatures, seeds, positions)
    tokens, drawn_logprobs = draw.draw_with_logprobs(logits, *settings_of_rows)
    margins, target_logprobs, again = draw.margins(logits, *settings_of_rows, targets)
    if draw.part_width(CPU, vocabulary) is not None:
        parts = draw.MarginsInParts(*settings_of_rows, targets)
        for first in range(0, vocabulary, 1999):
            parts.add(logits[:, first : first + 1999].float().contiguous(), first)
        for made, expected in zip(parts.result(), (margins, target_logprobs, again), strict=True):
            torch.testing.assert_close(made, expected, rtol=0, atol=2e-6)
    assert torch.equal(tokens, drawn)
    torch.testing.assert_close(again, drawn_logprobs, rtol=0, atol=4e-6)
    assert torch.equal(draw.draw(logits, *settings_of_rows), drawn)
    assert torch.equal(margins, noisy.amax(dim=-1) - noisy.gather(1, targets[:, None])[:, 0])
    assert (margins[::2] == 0).all()
    assert (margins[1::2] > 0).all()
    torch.testing.assert_close(drawn_logprobs, logprobs.gather(1, drawn[:, None])[:, 0], rtol=1e-6, atol=3e-6)
    torch.testing.assert_close(target_logprobs, logprobs.gather(1, targets[:, None])[:, 0], rtol=1e-6, atol=3e-6)


def test_margins_of_rows_without_a_finite_best_are_not_numbers() -> None:
    logits = torch.zeros(3, 40)
    logits[0], logits[1, 5], logits[2, 5] = -INF, INF, NAN
    seeds, positions = _seeded(3, 13)
    margins, logprobs, _ = draw.margins(logits, torch.ones(3), seeds, positions, torch.tensor([0, 5, 5]))
    assert margins.isnan().all()
    assert logprobs.isnan().all()


def test_logits_of_any_layout() -> None:
    seeds, positions = _seeded(3, 14)
    logits = torch.randn(6, 5000, 2, generator=torch.Generator().manual_seed(15))[::2, :, 1]
    assert not logits.is_contiguous()
    noisy, _ = _defined(logits, torch.ones(3), seeds, positions)
    assert torch.equal(draw.draw(logits, torch.ones(3), seeds, positions), noisy.argmax(dim=-1))
    assert draw.draw(logits[:0], torch.ones(0), seeds[:0], positions[:0]).shape == (0,)


def test_without_numba(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    seeds, positions = _seeded(2, 16)
    logits = torch.randn(2, 5000, generator=torch.Generator().manual_seed(17))
    expected = draw.draw(logits, torch.ones(2), seeds, positions)
    monkeypatch.setitem(sys.modules, "p2prl.models.seeded_draw.compiled", None)
    monkeypatch.delattr("p2prl.models.seeded_draw.compiled")
    monkeypatch.setattr(draw, "_compiled", draw._compiled.__wrapped__)
    assert torch.equal(draw.draw(logits, torch.ones(2), seeds, positions), expected)
    assert "numba is not installed" in caplog.text
    assert draw.part_width(CPU, 5000) is None
    with pytest.raises(LocalProtocolError):
        draw.MarginsInParts(torch.ones(2), seeds, positions, torch.zeros(2, dtype=torch.int64))


def test_this_machine_passes_the_check() -> None:
    draw.check_draw(CPU, draw.COMPILED_VOCABULARY)
    assert draw._draws_on("cpu")


def test_a_machine_with_other_noise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gumbel_noise, "ADDED", np.uint32(1))
    gumbel_noise._seed_states.cache_clear()
    with pytest.raises(MachineError, match="noise"):
        draw.check_draw(CPU, 18)
    gumbel_noise._seed_states.cache_clear()


@pytest.mark.parametrize(("name", "value"), [("ADDED", np.uint32(1)), ("_SERIES_BELOW", 2.0), ("_SERIES_BELOW", 0.0)])
def test_a_device_that_draws_otherwise_is_not_used(
    name: str, value: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(on_device, name, value)
    assert not draw._draws_on.__wrapped__("cpu")
    assert "is not the defined one" in caplog.text
