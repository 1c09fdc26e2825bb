"""Sample a list of requests to their ends with any sampler."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from p2prl.models.sampler_port import Generation, GenerationRequest, GenerationStopped, Sampler, Ticket
from p2prl.models.turn_sampling import TurnSampling

GREEDY_TEMPERATURE = 1e-6
"""Temperature of greedy decoding: scales logits up until the noise, about ten nats, cannot change the best one; two
closer than 1e-5 are equal in single precision anyway. So greedy decoding needs no second sampler."""


def sample_all(
    sampler: Sampler,
    requests: Sequence[GenerationRequest],
    *,
    should_stop: Callable[[], bool] | None = None,
    on_step: Callable[[int], None] | None = None,
) -> list[Generation]:
    """Completions of `requests`, in their order, with all their turns. Nothing else may be in flight.

    After each step, `on_step` gets the number of tokens sampled in it, and may load other weights; `should_stop` may
    end the call (`GenerationStopped`).
    """
    turns = TurnSampling()
    tickets = turns.submit(sampler, requests)
    ended: dict[Ticket, Generation] = {}
    try:
        while len(ended) < len(tickets):
            result = turns.step(sampler)
            ended.update(result.ended)
            if on_step is not None:
                on_step(result.tokens)
            if should_stop is not None and should_stop():
                raise GenerationStopped("generation was stopped")
    finally:
        sampler.cancel()  # after a failure or a stop, nothing of this call may go on
    return [ended[ticket] for ticket in tickets]
