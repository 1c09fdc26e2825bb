"""Positions of vLLM's draws: a request that continues a completion goes on with its noise. Needs no vLLM."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace

import torch

from p2prl.models.engines.vllm.draw import DrawArguments, DrawRows, Draws
from p2prl.models.engines.vllm.engine import EngineOutput
from p2prl.models.engines.vllm.sampler import CacheRoom, VllmSampler
from p2prl.models.sampler_port import Generation, GenerationRequest, StagedWeights, StepResult, Ticket
from p2prl.models.sampling import sample_all
from p2prl.models.seeded_draw.gumbel_noise import gumbel
from p2prl.protocol.digests import Digest

VOCABULARY = 12
LOGITS = torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(4))


class FlatEngine:
    """Stands in for vLLM: the same logits at every position, drawn as the logits processor draws."""

    def __init__(self, draws: Draws) -> None:
        self.draws = draws
        self.open: dict[int, tuple[DrawArguments, list[int], int, frozenset[int]]] = {}

    def add(
        self,
        arguments: DrawArguments,
        prompt_ids: Sequence[int],
        *,
        salt: str,
        max_tokens: int,
        stop_ids: Iterable[int],
    ) -> None:
        del prompt_ids, salt
        self.draws.expect(arguments.ticket)
        self.open[arguments.ticket] = arguments, [], max_tokens, frozenset(stop_ids)

    def step(self) -> list[EngineOutput]:
        outputs = []
        for ticket, (arguments, made, most, stops) in list(self.open.items()):
            logits = LOGITS.clone()
            self.draws.draw(logits, DrawRows.of([arguments], [len(made)]))
            made.append(int(logits.argmax()))
            ended = made[-1] in stops or len(made) == most
            if ended:
                del self.open[ticket]
            outputs.append(EngineOutput(ticket, made[-1:], ended))
        return outputs

    def abort(self, tickets: Iterable[int]) -> None:
        for ticket in tickets:
            self.open.pop(ticket, None)


def flat_sampler() -> VllmSampler:
    """The sampler around that engine."""
    draws = Draws(version=1)
    sampler = VllmSampler.__new__(VllmSampler)
    policy = SimpleNamespace(engine=FlatEngine(draws), draws=draws, salt="")
    room = CacheRoom(tokens=1000, sequences=8, limit=64)
    settings = {"_policy": policy, "_room": room, "_context": 64, "_sequences": 8, "_vocabulary": VOCABULARY}
    fresh = {"_tickets": iter(range(1000)), "_rows": {}, "_has_policy": True, "_unreported": StepResult(0)}
    for name, value in (settings | fresh).items():
        setattr(sampler, name, value)
    return sampler


def test_a_continued_request_goes_on_with_the_noise() -> None:
    request = GenerationRequest(prompt_ids=(1, 2), seed=99, max_new_tokens=10, temperature=0.7, stop_ids=frozenset())
    noise = gumbel(torch.tensor([99]), torch.arange(10)[None], VOCABULARY)[0]
    expected = (LOGITS / 0.7 + noise).argmax(dim=-1).tolist()
    (whole,) = sample_all(flat_sampler(), [request])
    assert list(whole.token_ids) == expected
    rest = replace(request, prompt_ids=(1, 2, *expected[:4]), max_new_tokens=6, first_position=4)
    (continued,) = sample_all(flat_sampler(), [rest])
    assert list(continued.token_ids) == expected[4:]
    assert continued.spans == ((0, 1),)


def test_one_that_is_resumed_keeps_its_place() -> None:
    """As after a swap of engines: the rest of a continued request is queued again."""
    request = GenerationRequest(
        prompt_ids=(1, 2), seed=99, max_new_tokens=6, temperature=0.7, stop_ids=frozenset(), first_position=4
    )
    (straight,) = sample_all(flat_sampler(), [request])
    sampler = flat_sampler()
    sampler.submit([request])
    for _ in range(2):
        sampler.step()
    sampler._withdraw(list(sampler._rows.values()))
    ended: list[tuple[Ticket, Generation]] = []
    while sampler.in_flight:
        ended += sampler.step().ended
    assert ended[0][1].token_ids == straight.token_ids


class FaultyPolicy:
    """Loads into a new `FlatEngine` after a failure; the first load returns a token that was not drawn."""

    salt = ""

    def __init__(self) -> None:
        self.draws = Draws(version=1)
        self.engine: FlatEngine | None = FlatEngine(self.draws)
        self.loads = 0

    def load(self, staged: StagedWeights, ticket: Ticket) -> list[EngineOutput]:
        del ticket
        self.loads += 1
        self.engine = self.engine or FlatEngine(self.draws)
        outputs = self.engine.step() + self.engine.step()
        self.draws.version = staged.version
        if self.loads == 1:
            last = outputs[-1]
            outputs[-1] = replace(last, token_ids=[(token + 1) % VOCABULARY for token in last.token_ids])
        return outputs

    def close(self) -> None:
        self.engine = None
        self.draws.clear()


def test_a_load_that_returns_another_token_loses_none_of_the_others() -> None:
    """Of completions that end while a policy is loaded, neither the end nor a token may be lost."""
    asked = [
        GenerationRequest(prompt_ids=(1, 2), seed=seed, max_new_tokens=most, temperature=0.7, stop_ids=frozenset())
        for seed, most in ((3, 3), (4, 4), (5, 9))
    ]
    wanted = sample_all(flat_sampler(), asked)
    sampler, policy = flat_sampler(), FaultyPolicy()
    sampler._policy = policy  # type: ignore[assignment]
    tickets = sampler.submit(asked)
    for _ in range(2):
        sampler.step()
    sampler.swap(StagedWeights(version=2, weights=b"", answer=Digest(bytes(32))))
    assert policy.loads == 2
    ended: dict[Ticket, Generation] = {}
    for _ in range(20):
        ended.update(sampler.step().ended)
    assert sampler.in_flight == 0
    assert [ended[ticket].token_ids for ticket in tickets] == [each.token_ids for each in wanted]
