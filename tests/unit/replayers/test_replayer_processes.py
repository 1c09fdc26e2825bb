"""Replayers: what they find is what one scorer in this process finds, whoever of them is killed meanwhile."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from p2prl.errors import ConfigError, IntegrityError, LocalProtocolError, MachineError
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.scorer import TransformersScorer
from p2prl.models.sampler_port import GenerationRequest
from p2prl.models.scorer_port import Scored
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.weights.layout import layout_of, weight_blocks
from p2prl.replayers import messages, replayer_processes
from p2prl.replayers.replayer_processes import ReplayerProcesses, _take_room
from p2prl_lab.testing.forked_roles import FORKING

pytestmark = pytest.mark.timeout(300)

FIELDS = ("margins", "logprobs", "best_logprobs", "sizes", "probe_logprobs")


class Rig:
    """A small model in a folder, weights of two policies, and a scorer in this process."""

    def __init__(self, folder: Path) -> None:
        made = tiny_model("chain4", seed=1)
        made.model.save_pretrained(folder / "model")
        made.tokenizer.save_pretrained(folder / "model")
        self.folder, self.notices = folder, list[str]()
        layout = layout_of(made.model, "float32")
        self.policies = [self._weights(made.model, layout)]
        with torch.no_grad():
            for parameter in made.model.parameters():
                parameter.mul_(1.5)
        self.policies.append(self._weights(made.model, layout))
        self.policy = PolicyModel(made.model, layout)
        self.scorer = TransformersScorer(self.policy)
        self.model = messages.Model(
            first=str(folder / "model"), lora=None, dtype="float32", published="float32", weight_bytes=layout.size_bytes
        )

    @staticmethod
    def _weights(model: torch.nn.Module, layout: object) -> bytes:
        return b"".join(block.tobytes() for block in weight_blocks(model, layout))  # type: ignore[arg-type]

    def start(self, count: int) -> ReplayerProcesses:
        return ReplayerProcesses(
            self.model, devices=["cpu"] * count, threads=1, folder=self.folder, on_notice=self.notices.append
        )

    def batch(self, seed: int) -> tuple[list[GenerationRequest], list[list[int]], list[list[int]]]:
        """Four groups of three completions, with two probes each."""
        draws = np.random.default_rng(seed)

        def tokens(count: int) -> list[int]:
            return [int(token) for token in draws.integers(0, self.policy.vocabulary, count)]

        requests, completions = [], []
        for _ in range(4):
            prompt = tuple(tokens(int(draws.integers(2, 8))))
            for _ in range(3):
                completions.append(tokens(int(draws.integers(1, 12))))
                requests.append(
                    GenerationRequest(
                        prompt_ids=prompt,
                        seed=int(draws.integers(1 << 40)),
                        max_new_tokens=12,
                        temperature=0.7,
                        stop_ids=frozenset(),
                        first_position=int(draws.integers(3)),
                    )
                )
        return requests, completions, [tokens(2) for _ in requests]

    def check(self, replayers: ReplayerProcesses, seed: int) -> None:
        """What they find of a batch is what one scorer finds, and the same tokens are drawn."""
        batch = self.batch(seed)
        alike(replayers.replay(*batch), self.scorer.replay(*batch))


def alike(found: Sequence[Scored], wanted: Sequence[Scored]) -> None:
    assert len(found) == len(wanted) > 0
    for mine, theirs in zip(found, wanted, strict=True):
        for field in FIELDS:
            np.testing.assert_allclose(getattr(mine, field), getattr(theirs, field), rtol=0, atol=1e-4)
        assert [margin == 0 for margin in mine.margins] == [margin == 0 for margin in theirs.margins]


@pytest.fixture(scope="module", autouse=True)
def forks() -> Iterator[None]:
    """Replayers are forks of a process that has imported torch; tests/loopback/test_local_sampler.py starts others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replayer_processes, "subprocess", FORKING)
        yield


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    return Rig(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def replayers(rig: Rig) -> Iterator[ReplayerProcesses]:
    made = rig.start(2)
    yield made
    made.close()


def test_two_replayers_find_what_one_scorer_finds_under_each_policy(rig: Rig, replayers: ReplayerProcesses) -> None:
    assert (replayers.engine_class, replayers.layers) == (rig.scorer.engine_class, rig.scorer.layers)
    first = rig.batch(1)
    results = []
    for weights in rig.policies:
        replayers.load_weights(weights)
        rig.scorer.load_weights(weights)
        for seed in range(3):
            rig.check(replayers, seed)
        results.append(replayers.replay(*first))
    assert results[0] != results[1], "the second policy is another one"
    requests, completions, _ = first
    assert [row.probe_logprobs for row in replayers.replay(requests, completions)] == [()] * len(requests)
    assert replayers.replay([], []) == []


def test_what_a_scorer_refuses_is_refused_and_work_goes_on(rig: Rig, replayers: ReplayerProcesses) -> None:
    replayers.load_weights(rig.policies[0])
    rig.scorer.load_weights(rig.policies[0])
    requests, completions, probes = rig.batch(5)
    with pytest.raises(LocalProtocolError):
        replayers.replay(requests, completions[1:])
    with pytest.raises(IntegrityError, match="vocabulary"):
        replayers.replay(requests, [[rig.policy.vocabulary], *completions[1:]])
    with pytest.raises(IntegrityError, match="bytes of weights"):
        replayers.load_weights(rig.policies[0][1:])
    rig.check(replayers, 6)
    replayers.sleep()
    with pytest.raises(IntegrityError, match="no policy"):
        replayers.replay(requests, completions, probes)
    replayers.load_weights(rig.policies[0])
    rig.check(replayers, 6)


def test_a_killed_replayer_is_started_again_and_the_others_do_its_work(rig: Rig, replayers: ReplayerProcesses) -> None:
    replayers.load_weights(rig.policies[1])
    rig.scorer.load_weights(rig.policies[1])
    rig.notices.clear()
    killed, kept = replayers.process_ids
    os.kill(killed, signal.SIGKILL)
    rig.check(replayers, 7)
    assert kept in replayers.process_ids
    assert killed not in replayers.process_ids
    assert len(replayers.process_ids) == 2
    assert rig.notices == ["replayer 1 was ended by signal 9; it starts again, and its groups are replayed"]
    for process_id in replayers.process_ids:  # nobody holds the policy then: the new ones are waited for
        os.kill(process_id, signal.SIGKILL)
    rig.check(replayers, 8)


def test_replayers_that_never_get_to_work_are_not_started_for_ever(rig: Rig) -> None:
    rig.notices.clear()
    made = rig.start(2)
    first, second = made.process_ids
    os.kill(first, signal.SIGKILL)
    made.load_weights(rig.policies[0])
    rig.scorer.load_weights(rig.policies[0])
    rig.check(made, 11)
    assert made.process_ids == [second]
    assert rig.notices == ["replayer 1 was ended by signal 9 before it had a policy; 1 replayer left"]
    made.close()


def test_a_replayer_that_cannot_start_says_why(rig: Rig, tmp_path: Path) -> None:
    missing = messages.Model(first=str(tmp_path), lora=None, dtype="float32", published="float32", weight_bytes=4)
    with pytest.raises(ConfigError, match=re.escape(str(tmp_path))):
        ReplayerProcesses(missing, devices=["cpu"], threads=1, folder=rig.folder, on_notice=rig.notices.append)
    endless = msgspec.structs.replace(rig.model, weight_bytes=1 << 60)
    with pytest.raises(MachineError, match="cannot keep the weights"):
        ReplayerProcesses(endless, devices=["cpu"], threads=1, folder=rig.folder, on_notice=rig.notices.append)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not reserve room for a file")
def test_the_room_for_weights_is_taken_before_they_come(tmp_path: Path) -> None:
    with (tmp_path / "weights").open("wb") as file:
        _take_room(file.fileno(), 1 << 20)
        assert os.fstat(file.fileno()).st_blocks * 512 >= 1 << 20
