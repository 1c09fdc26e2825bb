"""The seeded draw inside vLLM: the run's own draw, which lets no other token win.

vLLM's own seeds cannot serve: its noise changes with the backend and the release. The token is drawn from the logits
(`p2prl/models/seeded_draw/`), its logit is raised above all others, and vLLM takes it greedily. The log-prob, at the
sampling temperature and without the noise, is computed on the way: vLLM's are at temperature 1.

vLLM hands over the logits of every row of a step (`p2prl/models/engines/vllm/processors.py`), also those whose token it
then discards. So a draw counts only when vLLM reports its token.

On CUDA nothing here waits for the device: tokens and log-probs travel to pinned memory behind the step that computes
them, and are read once vLLM reports the token, one step later.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from p2prl.models.sampler_port import Ticket
from p2prl.models.seeded_draw.draw import card_draw, draw_with_logprobs

ARGUMENTS = "p2prl"
"""The key of a request's `DrawArguments` in vLLM's `SamplingParams.extra_args`."""


@dataclass(frozen=True, slots=True)
class DrawArguments:
    """What the draws of one request depend on, besides its logits."""

    ticket: Ticket
    seed: int
    temperature: float
    first: int
    """Position of the request's first token in the noise; above 0 where a completion is resumed or continued."""


@dataclass(frozen=True, slots=True)
class DrawnToken:
    """One draw."""

    token: int
    logprob: float
    version: int

    @property
    def is_number(self) -> bool:
        """Whether the logits were numbers."""
        return math.isfinite(self.logprob)


@dataclass(frozen=True, slots=True)
class DrawRows:
    """Rows to draw in one step, in the order of their logits; arrays of N."""

    tickets: Sequence[Ticket]
    seeds: npt.NDArray[np.int64]
    temperatures: npt.NDArray[np.float32]
    positions: npt.NDArray[np.int64]
    """Positions of the tokens within their completions."""

    @classmethod
    def of(cls, arguments: Sequence[DrawArguments], sampled: Sequence[int]) -> DrawRows:
        """Rows of requests that `sampled` tokens were drawn for before."""
        return cls(
            [of.ticket for of in arguments],
            np.array([of.seed for of in arguments], np.int64),
            np.array([of.temperature for of in arguments], np.float32),
            np.array([of.first + count for of, count in zip(arguments, sampled, strict=True)], np.int64),
        )


class DeviceSettings:
    """Temperatures, seeds and positions of a step's rows on the device, kept while the same rows go on by one token.

    Most steps of a few rows do, and decoding those is bound by the host.
    """

    def __init__(self) -> None:
        self._tickets: Sequence[Ticket] = ()
        self._positions = np.empty(0, np.int64)
        self._held: tuple[Tensor, Tensor, Tensor] | None = None

    def of(self, rows: DrawRows, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Those of this step. The next call may change them in place, behind what the device was asked until then."""
        goes_on = rows.tickets == self._tickets and np.array_equal(rows.positions, self._positions + 1)
        if self._held is not None and goes_on:  # a ticket has one seed and one temperature
            self._held[2].add_(1)
        else:
            self._held = _settings_on(device, rows)
        self._tickets, self._positions = rows.tickets, rows.positions
        return self._held


def _settings_on(device: torch.device, rows: DrawRows) -> tuple[Tensor, Tensor, Tensor]:
    """Temperatures, seeds and positions on the device, by one copy that nobody waits for."""
    count = len(rows.seeds)
    packed = torch.empty(20 * count, dtype=torch.uint8, pin_memory=device.type == "cuda")
    parts = packed.numpy()
    parts[: 8 * count].view(np.int64)[:] = rows.seeds
    parts[8 * count : 16 * count].view(np.int64)[:] = rows.positions
    parts[16 * count :].view(np.float32)[:] = rows.temperatures
    there = packed.to(device, non_blocking=True)
    seeds_N, positions_N = there[: 16 * count].view(torch.int64).view(2, count)
    return there[16 * count :].view(torch.float32), seeds_N, positions_N


@dataclass(slots=True)
class _StepDraws:
    """Draws of one step, on their way from the device."""

    version: int
    tokens_N: Tensor
    logprobs_N: Tensor
    copied: Any = None
    """CUDA's event behind the copies to this memory; None where the draw itself waited."""
    _read: tuple[list[int], list[float]] | None = None

    def at(self, row: int) -> DrawnToken:
        if self._read is None:
            if self.copied is not None:
                self.copied.synchronize()
            self._read = self.tokens_N.tolist(), self.logprobs_N.tolist()
        tokens, logprobs = self._read
        return DrawnToken(tokens[row], logprobs[row], self.version)


@dataclass(slots=True)
class Draws:
    """What the processor of one engine has drawn, until the sampler takes it."""

    version: int = -1
    """The policy in the engine."""

    watched: Ticket | None = None
    """A request whose last logits are kept in `logits`."""

    logits: Tensor | None = None

    _settings: DeviceSettings = field(default_factory=DeviceSettings)

    _drawn: dict[Ticket, dict[int, tuple[_StepDraws, int]]] = field(default_factory=dict)
    """By request and position: the step and the row in it."""

    def expect(self, ticket: Ticket) -> None:
        """Keep the draws of a request from now on, until it is forgotten."""
        self._drawn.setdefault(ticket, {})

    def draw(self, logits_NV: Tensor, rows: DrawRows) -> None:
        """Draw one token a row, and raise its logit above all others in place."""
        if self.watched is not None and self.watched in rows.tickets:
            self.logits = logits_NV[rows.tickets.index(self.watched)].clone()
        step = _drawn(logits_NV, rows, self._settings, self.version)
        for row, (ticket, position) in enumerate(zip(rows.tickets, rows.positions.tolist(), strict=True)):
            kept = self._drawn.get(ticket)  # none of a request that ended while this step was prepared
            if kept is not None:
                kept[position] = step, row

    def take(self, ticket: Ticket, position: int) -> DrawnToken | None:
        """The last draw at this position of a completion, once."""
        found = self._drawn.get(ticket, {}).pop(position, None)
        return None if found is None else found[0].at(found[1])

    def answer(self, ticket: Ticket) -> Tensor | None:
        """The logits (V,) of the watched request; None if vLLM ended it without a draw."""
        self.forget(ticket)
        logits, self.logits, self.watched = self.logits, None, None
        return logits

    def forget(self, ticket: Ticket) -> None:
        """Drop what is left of a request that ended or was cancelled."""
        self._drawn.pop(ticket, None)

    def clear(self) -> None:
        """Drop all draws."""
        self._drawn.clear()
        self.watched = self.logits = None


def _drawn(logits_NV: Tensor, rows: DrawRows, held: DeviceSettings, version: int) -> _StepDraws:
    """Draw, and raise the logits that won."""
    if (on_card := card_draw(logits_NV.device)) is not None:
        tokens_N, logprobs_N = on_card(logits_NV, *held.of(rows, logits_NV.device))
    else:
        settings = (torch.from_numpy(each) for each in (rows.temperatures, rows.seeds, rows.positions))
        tokens_N, logprobs_N = draw_with_logprobs(logits_NV, *settings)
    logits_NV.scatter_(1, tokens_N[:, None], torch.finfo(logits_NV.dtype).max)
    if logits_NV.device.type != "cuda":
        return _StepDraws(version, tokens_N, logprobs_N)
    copies = tokens_N.to("cpu", non_blocking=True), logprobs_N.to("cpu", non_blocking=True)  # pinned
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return _StepDraws(version, *copies, copied=event)
