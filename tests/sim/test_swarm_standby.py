"""A swarm with more volunteers than training needs: those that agreed to it stand by, the dearest first, and the run
trains as fast."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from p2prl.client.service import VolunteerConfig
from p2prl.client.standby import StandbyFollower
from p2prl.errors import RemoteProtocolError
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.protocol.envelope import open_envelope, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Role
from p2prl.protocol.peer_messages import Standby
from p2prl.sim import simulated_run
from p2prl.sim.machines import identity_of
from p2prl.sim.swarm import Swarm
from p2prl.sim.swarm_config import SwarmConfig
from p2prl.sim.virtual_time import START
from p2prl.swarm.gossip.envelope_check import check_envelope
from p2prl.swarm.node_config import NodeConfig

CONFIG = SwarmConfig(volunteers=4, updates=15, step_seconds=64.0, sample_seconds=16.0, publish_every=8, seed=3)
"""One update takes 16 groups in 64 s; the volunteers sample some 32 meanwhile."""


class PricedSwarm(Swarm):
    """Volunteers with even numbers agree to stand by, each at a higher price than the one before."""

    def __init__(self, config: SwarmConfig, directory: Path) -> None:
        self.sampled: list[tuple[float, int]] = []
        self._numbers: dict[bytes, int] = {}
        super().__init__(config, tiny_model("chain4", seed=1), directory)

    def _price(self, number: int) -> float | None:
        return 1.0 + number if number % 2 == 0 else None

    def _node_config(self, identity: Identity, role: Role, keep_versions: int) -> NodeConfig:
        plain = super()._node_config(identity, role, keep_versions)
        if role is not Role.VOLUNTEER:
            return plain
        number = self._numbers.setdefault(identity.public_key, len(self._numbers))
        return replace(plain, price=self._price(number))

    def _volunteer_config(self, number: int) -> VolunteerConfig:
        return replace(super()._volunteer_config(number), stands_by=self._price(number) is not None)

    def _volunteer_turn(self, host: Any, pace: float) -> float:
        seconds = super()._volunteer_turn(host, pace)
        if seconds == pace:
            self.sampled.append((self.network.elapsed, host.number))
        return seconds

    def leave(self, number: int) -> None:
        """A volunteer's machine is switched off for good."""
        (peer,) = (peer for peer, host in self._volunteers.items() if host.number == number)
        self.network.crash(peer)

    def batches(self, number: int, begins: float, ends: float) -> int:
        """Turns in which a volunteer sampled, between two virtual times."""
        return sum(begins <= at < ends for at, who in self.sampled if who == number)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(simulated_run, "_EVALUATION_PROMPTS", 8)  # no test here asks for the reward
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_dearest_that_agreed_stands_by_and_training_does_not_wait(tmp_path: Path) -> None:
    swarm = PricedSwarm(CONFIG, tmp_path)
    result = swarm.run(on_progress=lambda _: None)
    assert result.updates == CONFIG.updates
    assert result.groups_rejected == 0
    middle, last = 4 * CONFIG.step_seconds, 11 * CONFIG.step_seconds
    before = [swarm.batches(number, middle, middle + 256.0) for number in range(4)]
    after = [swarm.batches(number, last, last + 256.0) for number in range(4)]
    assert min(before) > 8
    assert after[2] <= 1, "the dearest that agreed"
    assert all(after[number] >= 0.85 * before[number] for number in (1, 3)), "who declared nothing works as ever"
    assert result.virtual_s <= 1.15 * CONFIG.updates * CONFIG.step_seconds


def test_who_stood_by_works_in_place_of_one_that_has_left(tmp_path: Path) -> None:
    """Before groups run low: more than an update's are left whenever one has been made."""
    left_at = 13 * CONFIG.step_seconds
    swarm = PricedSwarm(CONFIG, tmp_path)
    swarm.network.at(START + left_at, lambda: swarm.leave(1))
    swarm.run(on_progress=lambda _: None)
    assert swarm.batches(2, left_at - 2 * CONFIG.step_seconds, left_at) == 0, "it stood by"
    assert swarm.batches(1, left_at + CONFIG.step_seconds, 15 * CONFIG.step_seconds) == 0, "it has left"
    assert swarm.batches(2, left_at, left_at + 2 * CONFIG.step_seconds) >= 2


def test_nobody_but_the_learner_puts_anybody_on_standby() -> None:
    learner, liar = identity_of("learner"), identity_of("liar")
    run, now = bytes(32), START
    message = Standby((liar.public_key,), int((now + 300) * 1000))
    for author in (learner, liar):
        opened = open_envelope(seal(author, message, run=run, now=now), now=now)
        if author is learner:
            check_envelope(opened, run=run, learner=learner.public_key, group_bytes=1)
        else:
            with pytest.raises(RemoteProtocolError, match="not signed by the run's learner"):
                check_envelope(opened, run=run, learner=learner.public_key, group_bytes=1)


@pytest.mark.parametrize("seconds", [0, -1, 901])
def test_a_standby_without_a_near_end_is_refused(seconds: int) -> None:
    learner = identity_of("learner")
    message = Standby((bytes(32),), int((START + seconds) * 1000))
    opened = open_envelope(seal(learner, message, run=bytes(32), now=START), now=START)
    with pytest.raises(RemoteProtocolError, match="until_ms"):
        check_envelope(opened, run=bytes(32), learner=learner.public_key, group_bytes=1)


def test_a_standby_of_another_run_or_one_that_is_held_back_and_sent_again_is_refused() -> None:
    learner, day = identity_of("learner"), 86_400.0
    message = Standby((bytes(32),), int((START + 300) * 1000))
    other = open_envelope(seal(learner, message, run=bytes([1]) * 32, now=START), now=START)
    with pytest.raises(RemoteProtocolError):
        check_envelope(other, run=bytes(32), learner=learner.public_key, group_bytes=1)
    raw = seal(learner, message, run=bytes(32), now=START)
    follower = StandbyFollower(bytes(32), is_agreed=True)
    follower.take(message, open_envelope(raw, now=None).sent_ms)
    assert follower.reason(START + 299)
    assert follower.reason(START + 301) == "", "withheld or sent again, its end stays"
    follower.take(message, open_envelope(raw, now=None).sent_ms)
    assert follower.reason(START + day) == ""


def test_a_changed_standby_is_nobodys() -> None:
    """Whoever relays it can neither put another peer in it nor move its end."""
    learner, mine, other = identity_of("learner"), bytes([2]) * 32, bytes([1]) * 32
    raw = seal(learner, Standby((mine,), int((START + 300) * 1000)), run=bytes(32), now=START)
    assert raw.count(mine) == 1
    changed = raw.replace(mine, other)
    with pytest.raises(RemoteProtocolError):
        check_envelope(open_envelope(changed, now=START), run=bytes(32), learner=learner.public_key, group_bytes=1)
