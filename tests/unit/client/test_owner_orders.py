"""The owner's orders: rest frees the engine and loses no slot, a duty cycle leaves the machine its share of time."""

from __future__ import annotations

import random

import pytest

from p2prl.client.next_action import Load, Sample, Wait
from p2prl.client.progress import NO_STATUS
from p2prl.controls.rules import Order
from p2prl.net.process import control
from p2prl.protocol.ledger_messages import ReceiptState
from p2prl.protocol.peer_messages import Standby
from tests.unit.client.volunteer_rig import ME, InboxPort, VolunteerRig
from tests.unit.learner.small_run import NOW

REST = Order(rests=True, reason="paused by you", keeps_network=False)


class LeavingPort(InboxPort):
    """A network that can be left."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def suspend(self) -> None:
        self.calls.append("suspend")

    def resume(self) -> None:
        self.calls.append("resume")


@pytest.fixture(autouse=True)
def own_weights(rig: VolunteerRig) -> None:
    """A run's engine allocates its weights; those of a test's model are mapped from a file, and cannot be freed."""
    for parameter in rig.small_run.sampler._policy.model.parameters():
        parameter.data = parameter.data.clone()


def held_bytes(rig: VolunteerRig) -> int:
    """Memory of the engine's weights."""
    model = rig.small_run.sampler._policy.model
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in model.parameters()}.values())


def test_rest_frees_the_weights_and_the_next_load_takes_them_again(rig: VolunteerRig) -> None:
    before = held_bytes(rig)
    rig.introduce()
    rig.offer(0)
    rig.turns(3)
    rig.volunteer.owner.give(REST)
    assert rig.volunteer.turn(wait_s=0.0) == Wait("paused by you")
    assert held_bytes(rig) == 0 < before
    made = len(rig.groups())
    rig.turns(10)
    assert len(rig.groups()) == made
    assert rig.progress[-1].state == "paused by you"
    rig.volunteer.owner.give(Order())
    assert isinstance(rig.volunteer.turn(wait_s=0.0), Load)
    assert held_bytes(rig) == before
    rig.turns(3)
    assert len(rig.groups()) > made


def test_standby_frees_the_weights_once_nothing_is_in_flight_and_its_end_takes_them_again(
    rig: VolunteerRig,
) -> None:
    rig.volunteer.close()
    rig.start(stands_by=True)
    before = held_bytes(rig)
    rig.introduce()
    rig.offer(0)
    rig.turns(2)  # it loads the version, and two slots are in flight or done
    until_ms = int((NOW + 200.0) * 1000)
    standby = rig.says(Standby((ME.public_key,), until_ms))
    rig.port.inbox.append(control.EnvelopeArrived(standby))
    rig.turns(12)
    assert rig.progress[-1].state.startswith("standing by until ")
    assert held_bytes(rig) == 0 < before
    made = len(rig.groups())
    assert len(rig.groups()) == len({group.slot for group in rig.groups()}) >= 2, "what was begun is complete"
    rig.offer(1)  # it stays warm: weights go on arriving
    rig.turns(4)
    assert (held_bytes(rig), len(rig.groups()), rig.volunteer.held_version) == (0, made, 1)
    rig.clock.time = NOW + 201.0
    rig.turns(4)
    assert held_bytes(rig) == before
    assert 1 in [group.version for group in rig.groups()][made:], "besides those of version 0, which nobody confirmed"


def test_its_screen_says_that_it_rests_before_it_leaves_the_network_which_takes_seconds(rig: VolunteerRig) -> None:
    told: list[tuple[str, bool, int]] = []

    class SlowPort(LeavingPort):
        """A network that notes what was reported when it is left."""

        def suspend(self) -> None:
            told.append((rig.progress[-1].state, rig.progress[-1].resting, rig.progress[-1].version))

    rig.port = SlowPort()
    rig.volunteer.attach(rig.port)
    rig.introduce()
    rig.offer(0)
    rig.turns(3)
    assert not rig.progress[-1].resting
    rig.volunteer.owner.give(REST)
    rig.volunteer.turn(wait_s=0.0)
    assert told == [("paused by you", True, -1)]


def test_a_version_that_comes_during_the_rest_is_loaded_after_it(rig: VolunteerRig) -> None:
    rig.introduce()
    rig.offer(0)
    rig.turns(3)
    rig.volunteer.owner.give(REST)
    rig.turns(1)
    rig.offer(1)
    rig.turns(3)
    assert held_bytes(rig) == 0
    rig.volunteer.owner.give(Order())
    rig.turns(4)
    assert rig.groups()[-1].version == 1
    assert {outcome.state for outcome in rig.small_run.check(*[rig.small_run.sealed(rig.groups()[-1], ME)])} == {
        ReceiptState.VERIFIED
    }


def test_a_rest_before_the_run_is_found_is_no_search(rig: VolunteerRig) -> None:
    rig.volunteer.owner.give(REST)
    assert rig.volunteer.turn(wait_s=0.0) == Wait("paused by you")
    assert rig.progress[-1].state == "paused by you"
    assert rig.progress[-1].resting
    rig.volunteer.owner.give(Order())
    assert rig.volunteer.turn(wait_s=0.0) == Wait("looking for the run")


def test_a_rest_before_the_first_weights(rig: VolunteerRig) -> None:
    rig.volunteer.owner.give(REST)
    rig.introduce()
    rig.offer(0)
    rig.turns(4)
    assert not rig.groups()
    assert held_bytes(rig) == 0, "an engine that was built meanwhile is freed too"
    rig.volunteer.owner.give(Order())
    rig.turns(4)
    assert rig.groups()


@pytest.mark.parametrize("seed", range(2))
def test_no_slot_is_lost_or_made_twice_whenever_the_owner_pauses(rig: VolunteerRig, seed: int) -> None:
    chance = random.Random(seed)
    rig.introduce()
    rig.offer(0)
    version = 0
    for _ in range(25):
        rig.volunteer.owner.give(chance.choice([REST, Order(), Order(), Order(duty=0.5)]))
        rig.turns(1)
        if chance.random() < 0.1:
            version += 1
            rig.offer(version)
    rig.volunteer.owner.give(Order())
    rig.turns(6)
    rig.port.published = list(dict.fromkeys(rig.port.published))  # what has no receipt is sent again
    slots = [group.slot for group in rig.groups()]
    assert len(set(slots)) == len(slots) > 0
    in_flight = set(rig.volunteer._sampler.slots)
    assert set(range(max(slots) + 1)) <= set(slots) | in_flight
    stored = [rig.small_run.sealed(group, ME) for group in rig.groups()]
    assert {outcome.state for outcome in rig.small_run.check(*stored)} == {ReceiptState.VERIFIED}


def test_the_network_is_left_and_joined_once(rig: VolunteerRig) -> None:
    port = LeavingPort()
    rig.port = port
    rig.volunteer.attach(port)
    rig.introduce()
    rig.turns(1)
    rig.volunteer.owner.give(REST)
    rig.turns(3)
    rig.volunteer.owner.give(Order(rests=True, reason="paused", keeps_network=True))
    rig.turns(3)
    rig.volunteer.owner.give(REST)
    rig.turns(1)
    rig.volunteer.owner.give(Order())
    rig.turns(3)
    assert port.calls == ["suspend", "resume", "suspend", "resume"]


def test_finish_ends_a_resting_worker(rig: VolunteerRig) -> None:
    rig.introduce()
    rig.offer(0)
    rig.turns(3)
    rig.volunteer.owner.give(REST)
    rig.turns(1)
    rig.volunteer.finish()
    assert rig.volunteer._agent.done


@pytest.mark.parametrize("duty", [0.25, 0.5])
def test_a_duty_cycle_computes_its_share_of_the_time(rig: VolunteerRig, duty: float) -> None:
    rig.introduce()
    rig.port.inbox.append(NO_STATUS)  # without a learner in reach, no backlog holds it back
    rig.offer(0)
    rig.turns(3)
    rig.volunteer.owner.give(Order(duty=duty))
    start, computed = rig.clock.time, 0.0
    decode = rig.volunteer._sampler.decode

    def timed(*arguments: object, **named: object) -> object:
        nonlocal computed
        before = rig.clock.time
        made = decode(*arguments, **named)  # type: ignore[arg-type]
        computed += rig.clock.time - before
        return made

    rig.volunteer._sampler.decode = timed  # type: ignore[method-assign, assignment]
    actions = [rig.volunteer.turn(wait_s=0.0) for _ in range(400)]
    assert any(isinstance(action, Sample) for action in actions)
    assert computed / (rig.clock.time - start) == pytest.approx(duty, abs=0.1)
