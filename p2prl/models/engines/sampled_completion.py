"""A completion that grows token by token in an engine, with the version that drew each one."""

from __future__ import annotations

from dataclasses import dataclass, field

from p2prl.models.sampler_port import Generation, GenerationRequest, Ticket


@dataclass(slots=True)
class SampledCompletion:
    """What every engine keeps of a submitted request."""

    ticket: Ticket
    request: GenerationRequest
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    """(number of its first token, policy version) of each stretch drawn under one version."""
    finished: bool = False
    """Whether a stop token ended it."""
    ended: bool = False
    """Whether it is finished or has reached its limit."""

    @property
    def most_tokens(self) -> int:
        """Tokens at the limit, with the prompt."""
        return len(self.request.prompt_ids) + self.request.max_new_tokens

    @property
    def position(self) -> int:
        """Position of the next token in the noise."""
        return self.request.first_position + len(self.token_ids)

    def add(self, token: int, logprob: float, version: int) -> None:
        """Append a token sampled under `version`."""
        if not self.spans or self.spans[-1][1] != version:
            self.spans.append((len(self.token_ids), version))
        self.token_ids.append(token)
        self.logprobs.append(logprob)
        self.finished = token in self.request.stop_ids
        self.ended = self.finished or len(self.token_ids) == self.request.max_new_tokens

    def generation(self) -> Generation:
        """The completion so far."""
        return Generation(tuple(self.token_ids), tuple(self.logprobs), self.finished, tuple(self.spans))
