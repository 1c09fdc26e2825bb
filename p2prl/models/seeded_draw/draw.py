"""Draw tokens by seed, and measure how far given tokens lie below the drawn ones.

Shapes: N rows, each one draw; V the vocabulary. `logits` (N, V) of any float dtype on any device; `temperatures` (N,)
above 0; `seeds` (N,) 63-bit and `positions` (N,), the index of the token within its completion, as integers. Results
are on the device of the logits. A row's result does not depend on the other rows.
"""

from __future__ import annotations

import logging
import time
from functools import cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from p2prl.errors import MachineError
from p2prl.models.gumbel_noise import Indices, gumbel, hashes, noise_of, row_states, scramble
from p2prl.models.seeded_draw import every_token, on_device
from p2prl.models.seeded_draw.rows import Floats, RowSettings, Scan

COMPILED_VOCABULARY = 4096
"""A vocabulary of at least this size justifies the two seconds that compiling costs; a smaller one is drawn from in a
millisecond a step without."""

log = logging.getLogger("p2prl.models")


class CompiledScan(Protocol):
    """`compiled.scan`."""

    def __call__(self, logits: Floats, rows: RowSettings, *, with_sums: bool, threads: int) -> Scan: ...


def draw(logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """Tokens (N,) int64: argmax over v of float32(logits_v / temperature) + gumbel(seed, position, v), in float32.

    The lowest token of several; the first whose logit is not a number, if there is one.
    """
    batch = _Batch(logits, temperatures, seeds, positions)
    return torch.from_numpy(batch.scan(with_sums=False).tokens).to(logits.device)


def draw_with_logprobs(logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens as of `draw`, and their log-probs (N,) float32 at the temperature, without the noise."""
    batch = _Batch(logits, temperatures, seeds, positions)
    found = batch.scan(with_sums=True)
    logprobs = batch.scaled(found.tokens) - found.log_sums
    return torch.from_numpy(found.tokens).to(logits.device), torch.from_numpy(logprobs).to(logits.device)


def margins(
    logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """Distance of the noisy logits of `targets` (N,) below the best ones, and log-probs of `targets`; (N,) float32.

    0 where the target is the drawn token. Not a number where the best noisy logit is not finite.
    """
    batch = _Batch(logits, temperatures, seeds, positions)
    found = batch.scan(with_sums=True)
    wanted = _integers(targets)
    scaled = batch.scaled(wanted)
    noisy = scaled + noise_of(hashes(batch.rows.states, scramble(wanted.astype(np.uint32))))
    with np.errstate(invalid="ignore"):
        below = np.where((found.tokens == wanted) & np.isfinite(found.best), np.float32(0), found.best - noisy)
        logprobs = scaled - found.log_sums
    return torch.from_numpy(below).to(logits.device), torch.from_numpy(logprobs).to(logits.device)


def check_draw(device: torch.device, vocabulary: int) -> None:
    """Prepare to draw on this device, and compare known draws.

    `MachineError` when this machine does not give the defined noise. An implementation that draws otherwise is replaced
    by a slower one, with a warning.
    """
    seeds, positions = torch.tensor([0x0123456789ABCDEF, (1 << 63) - 1]), torch.tensor([[0, 7], [1, 32_767]])
    made = gumbel(seeds, positions, 3)[:, :, 2].flatten().tolist()
    if made != _KNOWN:
        raise MachineError(
            f"sampling noise on this machine is {made}, not {_KNOWN}",
            remedy="Choose another machine; work sampled on this one would be rejected.",
        )
    if device.type == "cuda":
        _draws_on(device.type)
    if vocabulary >= COMPILED_VOCABULARY:
        _compiled()


_KNOWN = [-0.36623960733413696, -1.0870659351348877, 0.9657083749771118, 0.6183928847312927]
_KNOWN_VOCABULARY = 5000


class _Batch:
    """Logits in float32 on their device, and the rows' settings on the CPU."""

    def __init__(self, logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor) -> None:
        self._logits = logits.detach().float()
        if self._logits.device.type != "cuda" or not _draws_on("cuda"):
            self._logits = self._logits.cpu().contiguous()
        states = row_states(_integers(seeds), _integers(positions))
        self.rows = RowSettings(temperatures.to("cpu", torch.float32).numpy(), states)

    def scan(self, *, with_sums: bool) -> Scan:
        if self._logits.device.type == "cuda":
            return on_device.scan(self._logits, self.rows, with_sums=with_sums)
        logits = self._logits.numpy()
        if logits.shape[1] >= COMPILED_VOCABULARY and (compiled := _compiled()) is not None:
            return compiled(logits, self.rows, with_sums=with_sums, threads=torch.get_num_threads())
        return every_token.scan(logits, self.rows, with_sums=with_sums)

    def scaled(self, tokens: Indices) -> Floats:
        """float32(logit / temperature) of one token per row."""
        where = torch.from_numpy(tokens).to(self._logits.device)
        picked: Floats = self._logits.gather(1, where[:, None])[:, 0].cpu().numpy()
        return picked / self.rows.temperatures


def _integers(values: Tensor) -> Indices:
    return values.to("cpu", torch.int64).numpy()


@cache
def _compiled() -> CompiledScan | None:
    """The compiled draw, if numba is installed and it draws the known tokens."""
    began = time.monotonic()
    try:
        from p2prl.models.seeded_draw import compiled
    except ImportError:
        log.warning("numba is not installed: sampling from a large vocabulary is slow")
        return None
    logits, rows = _known_rows()
    if not _accept("compiled code", _draws_known(compiled.scan(logits, rows, with_sums=True, threads=1))):
        return None
    log.info("compiled the draw in %.1f s", time.monotonic() - began)
    return compiled.scan


@cache
def _draws_on(device: str) -> bool:
    """Whether torch operations on this device draw the known tokens; otherwise logits are copied to the CPU."""
    logits, rows = _known_rows()
    made = on_device.scan(torch.from_numpy(logits).to(device), rows, with_sums=True)
    return _accept(device, _draws_known(made) and on_device.is_accurate_on(device))


def _draws_known(made: Scan) -> bool:
    wanted = every_token.scan(*_known_rows(), with_sums=True)
    return np.array_equal(made.tokens, wanted.tokens) and np.array_equal(made.best, wanted.best)


def _accept(name: str, is_right: bool) -> bool:
    if not is_right:
        log.warning("the draw on %s is not the defined one: a slower way is used", name)
    return is_right


def _known_rows() -> tuple[Floats, RowSettings]:
    """Rows with equal logits, close ones and spread ones, some of them infinite."""
    tokens = np.arange(_KNOWN_VOCABULARY, dtype=np.int64)
    logits = np.stack([tokens * 0, tokens * 40_503 % 9973, tokens * 30_011 % 7919, tokens * 31_337 % 5]).astype(
        np.float32
    )
    logits[2:, ::7] = -np.inf
    seeds = np.arange(4, dtype=np.int64) * 0x1234_5678_9ABC_DEF
    temperatures = np.array([1.0, 1e3, 7e-2, 1e-7], dtype=np.float32)
    return logits, RowSettings(temperatures, row_states(seeds, seeds % 97))
