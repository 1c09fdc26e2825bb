"""Sample requests to their ends with any sampler, turn by turn: ask the environment after each turn, submit the rest.

A sampler knows nothing of turns. The next turn is a further request: its prompt is the prompt and the transcript so
far, and its noise goes on where the transcript is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from p2prl.models.sampler_port import Generation, GenerationRequest, GenerationStopped, Sampler, StepResult, Ticket
from p2prl.models.turns import Episode

GREEDY_TEMPERATURE = 1e-6
"""Temperature of greedy decoding: scales logits up until the noise, about ten nats, cannot change the best one; two
closer than 1e-5 are equal in single precision anyway. So greedy decoding needs no second sampler."""


@dataclass(slots=True)
class _Open:
    """A completion of several turns, as far as it was sampled."""

    ticket: Ticket
    """Of its first turn: the caller's name for it."""
    request: GenerationRequest
    episode: Episode
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    context_tokens: int = 0

    def add_turn(self, turn: Generation) -> tuple[int, ...] | None:
        """Append a turn; return the message that follows it, or None at the end."""
        for first, version in turn.spans:
            if not self.spans or self.spans[-1][1] != version:
                self.spans.append((len(self.token_ids) + first, version))
        self.token_ids += turn.token_ids
        self.logprobs += turn.logprobs
        return self.episode.end_turn(turn.token_ids) if turn.finished else None

    def next_turn(self, message: Sequence[int]) -> GenerationRequest:
        """Append the environment's message; return the request of the turn after it."""
        self.token_ids += message
        self.logprobs += [0.0] * len(message)
        self.context_tokens += len(message)
        return replace(
            self.request,
            prompt_ids=(*self.request.prompt_ids, *self.token_ids),
            first_position=len(self.token_ids),
            max_new_tokens=self.request.max_new_tokens - len(self.token_ids),
        )

    def whole(self, *, finished: bool) -> Generation:
        """The transcript."""
        return Generation(tuple(self.token_ids), tuple(self.logprobs), finished, tuple(self.spans), self.context_tokens)


class TurnSampling:
    """Completions of several turns that one sampler has in flight; those of one turn pass through."""

    def __init__(self) -> None:
        self._open: dict[Ticket, _Open] = {}

    def submit(self, sampler: Sampler, requests: Sequence[GenerationRequest]) -> list[Ticket]:
        """See `Sampler.submit`."""
        plain = [replace(request, turns=None) if request.turns else request for request in requests]
        tickets = sampler.submit(plain)
        for ticket, request, first_turn in zip(tickets, requests, plain, strict=True):
            if request.turns is not None:
                self._open[ticket] = _Open(ticket, first_turn, Episode(request.turns))
        return tickets

    def step(self, sampler: Sampler) -> StepResult:
        """See `Sampler.step`. A completion has ended when its last turn has."""
        result = sampler.step()
        if not self._open:
            return result
        ended: list[tuple[Ticket, Generation]] = []
        going_on: list[tuple[_Open, GenerationRequest]] = []
        for ticket, turn in result.ended:
            row = self._open.pop(ticket, None)
            if row is None:
                ended.append((ticket, turn))
            elif (message := row.add_turn(turn)) is None:
                ended.append((row.ticket, row.whole(finished=turn.finished)))
            else:
                going_on.append((row, row.next_turn(message)))
        if going_on:
            tickets = sampler.submit([request for _, request in going_on])
            self._open.update(zip(tickets, [row for row, _ in going_on], strict=True))
        return StepResult(result.tokens, tuple(ended))

    def clear(self) -> None:
        """Forget everything, after the sampler was told to cancel."""
        self._open.clear()


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
