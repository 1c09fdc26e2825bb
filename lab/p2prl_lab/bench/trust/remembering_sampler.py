"""A sampler that samples each request once: attacks on one run differ in what they make of the same completions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from p2prl.models.sampler_port import Generation, GenerationRequest, Sampler, StagedWeights, StepResult, Ticket, Weights
from p2prl.protocol.rollout_group import EngineClass


class RememberingSampler:
    """A `Sampler` of one policy around another, which may not load any other."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._known: dict[GenerationRequest, Generation] = {}
        self._tickets = itertools.count()
        self._waiting: dict[Ticket, GenerationRequest] = {}
        self._asked: dict[Ticket, GenerationRequest] = {}
        """Requests in the other sampler, by its tickets."""

    @property
    def engine_class(self) -> EngineClass:
        """See `Sampler.engine_class`."""
        return self._sampler.engine_class

    @property
    def in_flight(self) -> int:
        """See `Sampler.in_flight`."""
        return len(self._waiting)

    @property
    def room(self) -> int:
        """See `Sampler.room`."""
        return self._sampler.room

    def stage(self, weights: Weights, version: int) -> StagedWeights:
        """See `Sampler.stage`."""
        return self._sampler.stage(weights, version)

    def swap(self, staged: StagedWeights) -> None:
        """See `Sampler.swap`."""
        self._sampler.swap(staged)
        self._known.clear()

    def submit(self, requests: Sequence[GenerationRequest]) -> list[Ticket]:
        """See `Sampler.submit`."""
        asked = set(self._asked.values())
        new = [request for request in dict.fromkeys(requests) if request not in self._known and request not in asked]
        self._asked |= zip(self._sampler.submit(new), new, strict=True)
        tickets = [next(self._tickets) for _ in requests]
        self._waiting |= zip(tickets, requests, strict=True)
        return tickets

    def step(self) -> StepResult:
        """See `Sampler.step`."""
        result = self._sampler.step()
        for ticket, generation in result.ended:
            self._known[self._asked.pop(ticket)] = generation
        ended = [(ticket, self._known[request]) for ticket, request in self._waiting.items() if request in self._known]
        for ticket, _ in ended:
            del self._waiting[ticket]
        return StepResult(result.tokens, tuple(ended))

    def cancel(self) -> None:
        """See `Sampler.cancel`."""
        self._sampler.cancel()
        self._asked.clear()
        self._waiting.clear()

    def sleep(self) -> None:
        """See `Sampler.sleep`."""
        self._sampler.sleep()
        self.cancel()
