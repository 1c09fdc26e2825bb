"""Evaluation: the same seed gives the same number, the number is the mean over its prompts, greedy draws nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2prl.errors import ConfigError, MachineError
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.evaluation.mean_reward import evaluate
from p2prl.models.hardware.device_choice import choose_device
from p2prl.models.sampler_port import Generation, GenerationRequest, StepResult, Ticket
from p2prl.models.sampling import GREEDY_TEMPERATURE, sample_all
from p2prl.models.small_models.tiny_models import tiny_model
from tests.unit.learner.small_run import SmallRun


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SmallRun]:
    made = SmallRun(tmp_path)
    yield made
    made.close()


def test_seed_fixes_the_result(world: SmallRun) -> None:
    first, again, other = (evaluate(world.sampler, world.work, prompts=300, seed=s) for s in (3, 3, 4))
    assert first == again
    assert first != other


class Recorder:
    """A sampler that returns the shortest completion and records its requests."""

    def __init__(self, stop: int) -> None:
        self.stop = stop
        self.requests: list[GenerationRequest] = []

    def submit(self, requests: list[GenerationRequest]) -> list[Ticket]:
        self.requests += requests
        self.tickets = list(range(len(requests)))
        return self.tickets

    def step(self) -> StepResult:
        made = Generation((self.stop,), (0.0,), True)
        return StepResult(len(self.tickets), tuple((ticket, made) for ticket in self.tickets))

    def cancel(self) -> None:
        pass


def test_each_prompt_is_sampled_once(world: SmallRun) -> None:
    (stop,) = world.work.assign(beacon=bytes(32), peer=bytes(32), slot=0).requests[0].stop_ids
    sampler, shares = Recorder(stop), list[float]()
    result = evaluate(sampler, world.work, prompts=520, seed=1, on_progress=shares.append)  # type: ignore[arg-type]
    assert len(sampler.requests) == result.prompts == 520
    assert len({request.seed for request in sampler.requests}) == 520
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert (result.reward, result.standard_error, result.tokens_mean) == (0.0, 0.0, 1.0)


def test_standard_error_of_the_mean(world: SmallRun) -> None:
    result = evaluate(world.sampler, world.work, prompts=256, seed=2)
    assert 0.0 <= result.reward <= 1.0
    assert result.standard_error <= 0.5 / math.sqrt(255)  # rewards lie within 0..1


def test_greedy_ignores_the_noise(world: SmallRun) -> None:
    model = tiny_model(seed=9).model
    sampler = TransformersSampler(PolicyModel(model, world.layout))
    prompt = world.work.assign(beacon=bytes(32), peer=bytes(32), slot=0).requests[0].prompt_ids
    greedy = evaluate(sampler, world.work, prompts=32, seed=5, greedy=True)
    assert greedy == evaluate(sampler, world.work, prompts=32, seed=5, greedy=True)
    drawn = [
        sample_all(
            sampler,
            [
                GenerationRequest(
                    prompt_ids=prompt,
                    seed=seed,
                    max_new_tokens=4,
                    temperature=GREEDY_TEMPERATURE,
                    stop_ids=frozenset({99}),
                )
            ],
        )[0].token_ids
        for seed in range(8)
    ]
    assert len(set(drawn)) == 1


def test_zero_prompts_and_unknown_devices_are_refused(world: SmallRun) -> None:
    with pytest.raises(ConfigError, match="prompts"):
        evaluate(world.sampler, world.work, prompts=0, seed=1)
    with pytest.raises(ConfigError, match="not a device"):
        choose_device("abacus")
    with pytest.raises(MachineError, match="no usable xpu"):
        choose_device("xpu")
    with pytest.raises(ConfigError) as caught:
        choose_device("cuda:0,cuda:1")
    assert "start another one" in caught.value.remedy
    assert choose_device("cpu").type == "cpu"


@pytest.mark.parametrize(("name", "is_there"), [("cuda", True), ("cuda:1", True), ("cuda:2", False)])
def test_a_card_beyond_the_last_one_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, is_there: bool) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    if is_there:
        assert choose_device(name).type == "cuda"
    else:
        with pytest.raises(MachineError, match="this machine has 2"):
            choose_device(name)
