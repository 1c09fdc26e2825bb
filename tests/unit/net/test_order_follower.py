"""A role's follower of its owner's orders: it leaves a network once, joins it once, and keeps a share of the time."""

from __future__ import annotations

import pytest

from p2prl.controls.rules import Order
from p2prl.errors import UnreachableError
from p2prl.net.process import control
from p2prl.net.process.bridge import NetworkPort
from p2prl.net.process.order_follower import IDLE_S, OrderFollower
from p2prl.net.process.passing_port import PassingPort
from p2prl.net.process.run_preparation import RunPreparation


class Port:
    """A network that notes what it is told."""

    addresses: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.status: control.Status | None = None

    def send(self, message: control.ToNetwork) -> None:
        self.calls.append(message)

    def poll(self, timeout_s: float) -> list[control.FromNetwork]:
        return []

    def wake(self) -> None:
        self.calls.append("wake")

    def close(self) -> None:
        pass


class LeavingPort(Port):
    def suspend(self) -> None:
        self.calls.append("suspend")

    def resume(self) -> None:
        self.calls.append("resume")


class HandClock:
    time = 50.0

    def now(self) -> float:
        return self.time


AWAY, HERE = Order(rests=True, reason="paused by you", keeps_network=False), Order()


def test_the_network_behind_other_ports_is_left_and_joined_once() -> None:
    port, follower = LeavingPort(), OrderFollower(HandClock())
    follower.attach(PassingPort(PassingPort(port)))
    seen = []
    for order in (HERE, AWAY, AWAY, Order(rests=True, keeps_network=True), HERE, AWAY):
        assert not follower.has_followed(order) or order is AWAY
        follower.follow_network(order)
        assert follower.has_followed(order)
        seen.append(follower.is_suspended)
    assert port.calls == ["suspend", "resume", "suspend"]
    assert seen == [False, True, True, False, False, True]


def test_a_network_that_cannot_be_left_stays() -> None:
    follower = OrderFollower(HandClock())
    follower.attach(Port())
    follower.follow_network(AWAY)
    assert not follower.is_suspended
    passing = PassingPort(Port())
    passing.suspend()
    passing.resume()


def test_orders_and_caps_reach_the_network_from_any_thread() -> None:
    port, follower = Port(), OrderFollower(HandClock())
    follower.give(AWAY)
    follower.limit_upload(bytes_s=1.0, monthly_bytes=2)
    follower.attach(port)
    follower.give(AWAY)
    follower.limit_upload(bytes_s=1.0, monthly_bytes=2)
    assert follower.order is AWAY
    assert port.calls == ["wake", control.SetUploadCaps(1.0, 2)]


class CountedTurns(RunPreparation[None]):
    """A start of work that notes how long the turns it counts took."""

    def __init__(self) -> None:
        super().__init__(lambda _, __: None, lambda _, __: None)
        self.seconds: list[float] = []

    def count_turn(self, seconds: float, network: NetworkPort) -> None:
        self.seconds.append(seconds)


def test_turns_are_taken_while_due_and_timed_on_the_network_alone() -> None:
    clock = HandClock()
    follower, counted = OrderFollower(clock), CountedTurns()
    follower.attach(LeavingPort())
    waits: list[float] = []
    orders = iter([HERE, Order(rests=True), AWAY, HERE])
    for took_s, wait_s in enumerate(follower.turns(counted, is_due=lambda: len(waits) < 5, poll_s=0.25)):
        waits.append(wait_s)
        clock.time += took_s
        if took_s < 4:
            order = next(orders)
            follower.give(order)
            follower.follow_network(order)
    assert [wait > 0.25 for wait in waits] == [False, False, True, True, False]
    assert counted.seconds == [0.0, 1.0, 3.0, 4.0], "the third turn ended off the network"


def test_a_turn_that_outlasts_the_patience_ends_the_loop() -> None:
    clock = HandClock()
    port, follower = Port(), OrderFollower(clock)
    port.status = control.Status((), 0, 0, 0, 0, (-1, 0, 0), resident_bytes=0, daemon_bytes=0)
    follower.attach(port)
    preparation: RunPreparation[None] = RunPreparation(lambda _, __: None, lambda _, __: None)
    turns = follower.turns(preparation, is_due=lambda: True, poll_s=0.25)
    for _ in range(15):
        next(turns)
        clock.time += 4.0
    assert next(turns) == 0.25, "a minute, and no more"
    clock.time += 4.0
    with pytest.raises(UnreachableError):
        next(turns)


def test_a_duty_cycle_rests_as_long_as_it_says() -> None:
    clock = HandClock()
    follower = OrderFollower(clock)
    follower.computed(3.0)
    assert follower.rest_s() == 0.0
    follower.give(Order(duty=0.25))
    follower.computed(2.0)
    assert follower.rest_s() == 6.0
    clock.time += 5.0
    assert follower.rest_s() == 1.0
    clock.time += 5.0
    assert follower.rest_s() == 0.0


def test_memory_of_the_networks_processes() -> None:
    port, follower = LeavingPort(), OrderFollower(HandClock())
    assert follower.memory_bytes() == 0
    follower.attach(port)
    assert follower.memory_bytes() == 0
    port.status = control.Status((), 0, 0, 0, 0, (-1, 0, 0), resident_bytes=40, daemon_bytes=2)
    assert follower.memory_bytes() == 42
    follower.follow_network(AWAY)
    assert follower.memory_bytes() == 0


def test_a_role_is_idle_some_time_after_it_computed_and_not_before() -> None:
    clock = HandClock()
    owner = OrderFollower(clock)
    seen = []
    for seconds, computes in ((10 * IDLE_S, False), (0.0, True), (IDLE_S, False), (1.0, False), (0.0, True)):
        clock.time += seconds
        if computes:
            owner.computed(0.1)
        seen.append(owner.is_idle)
    assert seen == [False, False, False, True, False], "not while it starts, nor just after it computed"
