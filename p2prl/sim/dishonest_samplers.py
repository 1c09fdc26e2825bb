"""Dishonest samplers, for simulations, benchmarks and tests over sockets: each wraps the engine of an honest volunteer.

A cheat changes what is asked of the honest engine, what is made of its answers, or the weights it loads. To test
another attack, write a `Cheat` and add it to `CHEATS`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

import numpy as np

from p2prl.models.sampler_port import Generation, GenerationRequest, Sampler, StagedWeights, StepResult, Ticket, Weights
from p2prl.models.sampling import GREEDY_TEMPERATURE
from p2prl.protocol.rollout_group import EngineClass

VOCABULARY = 16
"""Token ids below this exist in every model the project trains."""

_ROUNDED_TOGETHER = 64
"""Weights that share a scale when they are rounded to few bits."""


def _as_asked(request: GenerationRequest) -> Sequence[GenerationRequest]:
    return (request,)


def _as_sampled(request: GenerationRequest, made: Sequence[Generation], rng: random.Random) -> Generation:
    del request, rng
    return made[0]


Ask = Callable[[GenerationRequest], Sequence[GenerationRequest]]
"""What is asked of the honest engine for one request."""

Answer = Callable[[GenerationRequest, Sequence[Generation], random.Random], Generation]
"""What is delivered, from the honest engine's answers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cheat:
    """A way to cheat."""

    ask: Ask = _as_asked
    answer: Answer = _as_sampled
    change: Callable[[Weights], Weights] | None = None
    """The weights loaded in place of a version's."""
    keeps_first: bool = False
    """Whether it never loads a version after its first."""


@dataclass(slots=True)
class _Pending:
    """A request and the honest engine's answers so far, by their tickets."""

    request: GenerationRequest
    answers: dict[Ticket, Generation | None] = field(default_factory=dict)


class DishonestSampler:
    """An honest sampler with a cheat around it."""

    def __init__(self, honest: Sampler, cheat: Cheat) -> None:
        self._honest = honest
        self._cheat = cheat
        self._rng = random.Random(0)  # noqa: S311 - not secret
        self._tickets = itertools.count()
        self._pending: dict[Ticket, _Pending] = {}
        self._has_policy = False

    @property
    def engine_class(self) -> EngineClass:
        """Claims to be the honest sampler."""
        return self._honest.engine_class

    @property
    def in_flight(self) -> int:
        """See `Sampler.in_flight`."""
        return len(self._pending)

    @property
    def room(self) -> int:
        """See `Sampler.room`."""
        return self._honest.room

    def stage(self, weights: Weights, version: int) -> StagedWeights:
        """Check the weights that the cheat loads instead."""
        return self._honest.stage(self._cheat.change(weights) if self._cheat.change else weights, version)

    def swap(self, staged: StagedWeights) -> None:
        """Load a staged policy, unless the cheat keeps its first."""
        if not (self._cheat.keeps_first and self._has_policy):
            self._honest.swap(staged)
        self._has_policy = True

    def submit(self, requests: Sequence[GenerationRequest]) -> list[Ticket]:
        """Ask the honest engine for what the cheat needs."""
        tickets = []
        for request in requests:
            asked = self._honest.submit(self._cheat.ask(request))
            tickets.append(ticket := next(self._tickets))
            self._pending[ticket] = _Pending(request, dict.fromkeys(asked))
        return tickets

    def step(self) -> StepResult:
        """Return what is complete."""
        result = self._honest.step()
        ended = []
        for inner, generation in result.ended:
            owner = next(pending for pending in self._pending.values() if inner in pending.answers)
            owner.answers[inner] = generation
        for ticket, pending in list(self._pending.items()):
            made = [answer for answer in pending.answers.values() if answer is not None]
            if len(made) == len(pending.answers):
                ended.append((ticket, self._cheat.answer(pending.request, made, self._rng)))
                del self._pending[ticket]
        return StepResult(sum(len(generation.token_ids) for _, generation in ended), tuple(ended))

    def cancel(self) -> None:
        """See `Sampler.cancel`."""
        self._honest.cancel()
        self._pending.clear()

    def sleep(self) -> None:
        """See `Sampler.sleep`."""
        self._honest.sleep()
        self._pending.clear()
        self._has_policy = False


# --- what is asked -------------------------------------------------------------------------------------------------


def _nothing(request: GenerationRequest) -> Sequence[GenerationRequest]:
    del request
    return ()


def _greedily(request: GenerationRequest) -> Sequence[GenerationRequest]:
    return (replace(request, temperature=GREEDY_TEMPERATURE),)


def _hotter(request: GenerationRequest, factor: float) -> Sequence[GenerationRequest]:
    return (replace(request, temperature=factor * request.temperature),)


def _with_other_seeds(request: GenerationRequest, count: int) -> Sequence[GenerationRequest]:
    return [replace(request, seed=(request.seed + number) % (1 << 63)) for number in range(1, count + 1)]


# --- what is made of it --------------------------------------------------------------------------------------------


def _made_up(request: GenerationRequest, made: Sequence[Generation], rng: random.Random) -> Generation:
    """Well-formed tokens with plausible log-probs, without a forward pass."""
    del made
    length = 1 + rng.randrange(request.max_new_tokens)
    others = [token for token in range(VOCABULARY) if token not in request.stop_ids]
    body = [rng.choice(others) for _ in range(length - 1)]
    tokens = (*body, min(request.stop_ids))
    return Generation(tokens, tuple(-rng.random() for _ in tokens), finished=True)


def _likeliest(request: GenerationRequest, made: Sequence[Generation], rng: random.Random) -> Generation:
    """Of several answers that with the highest mean log-prob."""
    del request, rng
    return max(made, key=lambda each: sum(each.logprobs) / len(each.logprobs))


def _cut(generation: Generation, length: int) -> Generation:
    return replace(
        generation, token_ids=generation.token_ids[:length], logprobs=generation.logprobs[:length], finished=False
    )


def _truncated(request: GenerationRequest, made: Sequence[Generation], rng: random.Random) -> Generation:
    """The first half, unfinished."""
    del request, rng
    return _cut(made[0], -(-len(made[0].token_ids) // 2))


def _stopped_early(request: GenerationRequest, made: Sequence[Generation], rng: random.Random) -> Generation:
    """The first half, and an end token that was not drawn."""
    del rng
    half = _cut(made[0], len(made[0].token_ids) // 2)
    end = (*half.token_ids, min(request.stop_ids))
    return replace(half, token_ids=end, logprobs=(*half.logprobs, -1.0), finished=True)


def _over_long(request: GenerationRequest, made: Sequence[Generation], rng: random.Random) -> Generation:
    """More tokens than the run allows."""
    del rng
    tokens, logprobs = made[0].token_ids, made[0].logprobs
    missing = request.max_new_tokens + 1 - len(tokens)
    return replace(
        made[0], token_ids=tokens + tokens[:1] * missing, logprobs=logprobs + logprobs[:1] * missing, finished=False
    )


def _with_last_edited(request: GenerationRequest, made: Sequence[Generation], rng: random.Random) -> Generation:
    """Its last token replaced by any other, as an answer would be."""
    last = made[0].token_ids[-1]
    others = [token for token in range(VOCABULARY) if token != last and token not in request.stop_ids]
    changed = replace(made[0], token_ids=(*made[0].token_ids[:-1], rng.choice(others)), finished=False)
    if len(changed.token_ids) == request.max_new_tokens:
        return changed
    end = min(request.stop_ids)  # short of the limit only an end token makes it well-formed
    return replace(changed, token_ids=(*changed.token_ids, end), logprobs=(*changed.logprobs, -1.0), finished=True)


class _SameAnswer:
    """The first completion again and again: old work, replayed."""

    def __init__(self) -> None:
        self._first: Generation | None = None

    def __call__(self, request: GenerationRequest, made: Sequence[Generation], rng: random.Random) -> Generation:
        del request, rng
        self._first = self._first or made[0]
        return self._first


def _with_logprobs(
    change: Callable[[Sequence[float]], Sequence[float]],
    request: GenerationRequest,
    made: Sequence[Generation],
    rng: random.Random,
) -> Generation:
    """The right tokens with other log-probs."""
    del request, rng
    return replace(made[0], logprobs=tuple(change(made[0].logprobs)))


# --- weights -------------------------------------------------------------------------------------------------------


def rounded_weights(bits: int, weights: Weights) -> bytes:
    """Float32 weights rounded to `bits` bits, in blocks with a scale of their own, as quantized models are."""
    values = np.frombuffer(weights, dtype="<f4")
    padded = np.pad(values, (0, -len(values) % _ROUNDED_TOGETHER)).reshape(-1, _ROUNDED_TOGETHER)
    most = 2 ** (bits - 1) - 1
    scales = np.maximum(np.abs(padded).max(axis=1, keepdims=True), 1e-30) / most
    rounded: bytes = (np.round(padded / scales) * scales).ravel()[: len(values)].astype("<f4").tobytes()
    return rounded


def moved_weights(distance: float, weights: Weights) -> bytes:
    """Float32 weights that `distance` away from their own, up or down: what Adam's updates do to a policy."""
    values = np.frombuffer(weights, dtype="<f4")
    signs = np.random.default_rng(0).choice([-1.0, 1.0], len(values))
    moved: bytes = (values + distance * signs).astype("<f4").tobytes()
    return moved


def other_checkpoint(weights: Weights) -> bytes:
    """Float32 weights half of whose variance is another model's."""
    values = np.frombuffer(weights, dtype="<f4")
    noise = np.random.default_rng(1).normal(0.0, float(values.std()), len(values))
    mixed: bytes = ((values + noise) / math.sqrt(2.0)).astype("<f4").tobytes()
    return mixed


CHEATS: Mapping[str, Cheat] = MappingProxyType(
    {
        "fabricate": Cheat(ask=_nothing, answer=_made_up),
        "greedy": Cheat(ask=_greedily),
        "temperature x 1.1": Cheat(ask=partial(_hotter, factor=1.1)),
        "temperature x 1.5": Cheat(ask=partial(_hotter, factor=1.5)),
        "other seeds": Cheat(ask=partial(_with_other_seeds, count=1)),
        "best of 4": Cheat(ask=partial(_with_other_seeds, count=4), answer=_likeliest),
        "truncate": Cheat(answer=_truncated),
        "stop early": Cheat(answer=_stopped_early),
        "run on": Cheat(answer=_over_long),
        "edit the last token": Cheat(answer=_with_last_edited),
        "deflate log-probs": Cheat(answer=partial(_with_logprobs, lambda old: [value - 1.0 for value in old])),
        "constant log-probs": Cheat(
            answer=partial(_with_logprobs, lambda old: [sum(old) / len(old)] * len(old)),
        ),
        "log-probs that are no numbers": Cheat(answer=partial(_with_logprobs, lambda old: [math.nan] * len(old))),
        "stale policy": Cheat(keeps_first=True),
    }
)
"""Name → cheat, of those that work in any run."""

WEIGHT_CHEATS: Mapping[str, Cheat] = MappingProxyType(
    {
        "int8 weights": Cheat(change=partial(rounded_weights, 8)),
        "int4 weights": Cheat(change=partial(rounded_weights, 4)),
        "policy of 10 updates before": Cheat(change=partial(moved_weights, 1e-4)),
        "policy of 100 updates before": Cheat(change=partial(moved_weights, 1e-3)),
        "other checkpoint": Cheat(change=other_checkpoint),
    }
)
"""Name → cheat, of those that work in runs whose versions are published in float32. Older policies are as far away as
updates of Adam at a learning rate of 1e-5 go."""


def cheating(cheat: Cheat, honest: Sampler) -> Sampler:
    """An honest sampler with a cheat around it."""
    return DishonestSampler(honest, cheat)


def repeating(honest: Sampler) -> Sampler:
    """A sampler that delivers its first completion for every slot."""
    return DishonestSampler(honest, dataclasses.replace(Cheat(), answer=_SameAnswer()))


DISHONEST_SAMPLERS: Mapping[str, Callable[[Sampler], Sampler]] = MappingProxyType(
    {name.replace(" ", "-"): partial(cheating, cheat) for name, cheat in CHEATS.items()}
    | {"repeat-old-work": repeating}
)
"""Name on the command line → sampler made from the honest one."""
