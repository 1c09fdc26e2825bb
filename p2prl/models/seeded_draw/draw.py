"""Draw tokens by seed, and measure how far given tokens lie below the drawn ones.

Shapes: N rows, each one draw; V the vocabulary. `logits` (N, V) of any float dtype on any device; `temperatures` (N,)
above 0; `seeds` (N,) 63-bit and `positions` (N,), the index of the token within its completion, as integers. Results
are on the device of the logits. A row's result does not depend on the other rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from p2prl.errors import LocalProtocolError, MachineError
from p2prl.models.seeded_draw import every_token, on_device
from p2prl.models.seeded_draw.every_token import KnownRows
from p2prl.models.seeded_draw.gumbel_noise import Indices, gumbel, hashes, noise_of, row_states, scramble
from p2prl.models.seeded_draw.rows import Floats, RowSettings, Scan

if TYPE_CHECKING:
    from p2prl.models.seeded_draw.compiled import Draws

COMPILED_VOCABULARY = 4096
"""A vocabulary of at least this size justifies the two seconds that compiling costs; a smaller one is drawn from in a
millisecond a step without."""

_PART_WIDTH = 4096
"""Wide enough for matrix products at full speed, narrow enough that thousands of rows of logits stay in the cache."""

log = logging.getLogger("p2prl.models")


def draw(logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """Tokens (N,) int64: argmax over v of float32(logits_v / temperature) + gumbel(seed, position, v), in float32.

    The lowest token of several; the first whose logit is not a number, if there is one.
    """
    if (on_card := card_draw(logits.device)) is not None:
        return on_card(logits, *_on(logits.device, temperatures, seeds, positions))[0]
    batch = _Batch(logits, temperatures, seeds, positions)
    return torch.from_numpy(batch.scan(with_sums=False).tokens).to(logits.device)


def draw_with_logprobs(logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens as of `draw`, and their log-probs (N,) float32 at the temperature, without the noise."""
    if (on_card := card_draw(logits.device)) is not None:
        return on_card(logits, *_on(logits.device, temperatures, seeds, positions))
    batch = _Batch(logits, temperatures, seeds, positions)
    found = batch.scan(with_sums=True)
    logprobs = batch.scaled(found.tokens) - found.log_sums
    return torch.from_numpy(found.tokens).to(logits.device), torch.from_numpy(logprobs).to(logits.device)


def margins(
    logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Distance of the noisy logits of `targets` (N,) below the best ones, log-probs of `targets`, and log-probs of the
    drawn tokens; (N,) float32.

    0 where the target is the drawn token. Not a number where the best noisy logit is not finite.
    """
    batch = _Batch(logits, temperatures, seeds, positions)
    wanted = _integers(targets)
    found = _margins(batch.scan(with_sums=True), batch.rows, wanted, batch.scaled(wanted))
    below, logprobs, drawn_logprobs = (each.to(logits.device) for each in found)
    return below, logprobs, drawn_logprobs


class MarginsInParts:
    """`margins` of rows whose logits come in parts of the vocabulary, on the CPU: see `part_width`."""

    def __init__(self, temperatures: Tensor, seeds: Tensor, positions: Tensor, targets: Tensor) -> None:
        self._rows = _settings(temperatures, seeds, positions)
        self._targets = _integers(targets)
        compiled_draws = _compiled()
        if compiled_draws is None:
            raise LocalProtocolError("logits in parts need the compiled draw")
        self._draws = compiled_draws(self._rows, with_sums=True, threads=torch.get_num_threads())
        self._scaled = np.zeros(len(self._targets), np.float32)

    def add(self, logits: Tensor, first: int) -> None:
        """Take the logits (N, W) float32, contiguous, of tokens `first` to `first` + W − 1; parts come in order."""
        part = logits.numpy()
        self._draws.add(part, first)
        inside = np.flatnonzero((self._targets >= first) & (self._targets < first + part.shape[1]))
        self._scaled[inside] = part[inside, self._targets[inside] - first] / self._rows.temperatures[inside]

    def result(self) -> tuple[Tensor, Tensor, Tensor]:
        """What `margins` returns, once all logits were added."""
        return _margins(self._draws.result(), self._rows, self._targets, self._scaled)


def part_width(device: torch.device, vocabulary: int) -> int | None:
    """Tokens whose logits `MarginsInParts` takes best at once; None where `margins` of complete rows is the way."""
    if device.type != "cpu" or vocabulary < COMPILED_VOCABULARY or _compiled() is None:
        return None
    return _PART_WIDTH


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
        card_draw(device)
        _draws_on(device.type)
    if vocabulary >= COMPILED_VOCABULARY:
        _compiled()


_KNOWN = [-0.36623960733413696, -1.0870659351348877, 0.9657083749771118, 0.6183928847312927]


def _margins(found: Scan, rows: RowSettings, targets: Indices, scaled: Floats) -> tuple[Tensor, Tensor, Tensor]:
    """`scaled` (N,) are the targets' logits over the temperatures."""
    noisy = scaled + noise_of(hashes(rows.states, scramble(targets.astype(np.uint32))))
    drawn_noise = noise_of(hashes(rows.states, scramble(found.tokens.astype(np.uint32))))
    with np.errstate(invalid="ignore"):
        is_drawn = found.tokens == targets
        below = np.where(is_drawn & np.isfinite(found.best), np.float32(0), found.best - noisy)
        logprobs = scaled - found.log_sums
        drawn_logprobs = np.where(is_drawn, logprobs, found.best - drawn_noise - found.log_sums)
        return torch.from_numpy(below), torch.from_numpy(logprobs), torch.from_numpy(drawn_logprobs)


class _Batch:
    """Logits in float32 on their device, and the rows' settings on the CPU."""

    def __init__(self, logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor) -> None:
        self._logits = logits.detach().float()
        if self._logits.device.type != "cuda" or not _draws_on("cuda"):
            self._logits = self._logits.cpu().contiguous()
        self.rows = _settings(temperatures, seeds, positions)

    def scan(self, *, with_sums: bool) -> Scan:
        if self._logits.device.type == "cuda":
            return on_device.scan(self._logits, self.rows, with_sums=with_sums)
        logits = self._logits.numpy()
        if logits.shape[1] >= COMPILED_VOCABULARY and (compiled_draws := _compiled()) is not None:
            draws = compiled_draws(self.rows, with_sums=with_sums, threads=torch.get_num_threads())
            draws.add(logits, 0)
            return draws.result()
        return every_token.scan(logits, self.rows, with_sums=with_sums)

    def scaled(self, tokens: Indices) -> Floats:
        """float32(logit / temperature) of one token per row."""
        where = torch.from_numpy(tokens).to(self._logits.device)
        picked: Floats = self._logits.gather(1, where[:, None])[:, 0].cpu().numpy()
        return picked / self.rows.temperatures


def _settings(temperatures: Tensor, seeds: Tensor, positions: Tensor) -> RowSettings:
    states = row_states(_integers(seeds), _integers(positions))
    return RowSettings(temperatures.to("cpu", torch.float32).numpy(), states)


def _on(device: torch.device, *parts: Tensor) -> tuple[Tensor, ...]:
    return tuple(part.to(device, non_blocking=True) for part in parts)


def _integers(values: Tensor) -> Indices:
    return values.to("cpu", torch.int64).numpy()


@cache
def _compiled() -> type[Draws] | None:
    """The compiled draw, if numba is installed and it draws the known tokens."""
    began = time.monotonic()
    try:
        from p2prl.models.seeded_draw import compiled
    except ImportError:
        log.warning("numba is not installed: sampling from a large vocabulary is slow")
        return None
    known = KnownRows.make()
    draws = compiled.Draws(known.rows, with_sums=True, threads=1)
    draws.add(known.logits, 0)
    if not _accept("compiled code", _draws_known(draws.result())):
        return None
    log.info("compiled the draw in %.1f s", time.monotonic() - began)
    return compiled.Draws


@cache
def card_draw(device: torch.device) -> Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] | None:
    """`card_draw.draw_on_card`, if Triton is installed and it draws the known tokens on this device."""
    if device.type != "cuda":
        return None
    try:
        from p2prl.models.seeded_draw import card_draw as kernels
    except (ImportError, OSError) as error:
        log.warning("Triton cannot be used, so each token waits for the card: %s", error)
        return None
    return kernels.draw_on_card if kernels.is_right_on(device) else None


@cache
def _draws_on(device: str) -> bool:
    """Whether torch operations on this device draw the known tokens; otherwise logits are copied to the CPU."""
    known = KnownRows.make()
    made = on_device.scan(torch.from_numpy(known.logits).to(device), known.rows, with_sums=True)
    return _accept(device, _draws_known(made) and on_device.is_accurate_on(device))


def _draws_known(made: Scan) -> bool:
    known = KnownRows.make()
    wanted = every_token.scan(known.logits, known.rows, with_sums=True)
    return np.array_equal(made.tokens, wanted.tokens) and np.array_equal(made.best, wanted.best)


def _accept(name: str, is_right: bool) -> bool:
    if not is_right:
        log.warning("the draw on %s is not the defined one: a slower way is used", name)
    return is_right
