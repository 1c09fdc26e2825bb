"""A role's follower of its owner's orders: it leaves a network once, joins it once, and keeps a share of the time."""

from __future__ import annotations

from p2prl.controls.rules import Order
from p2prl.net.process import control
from p2prl.net.process.order_follower import OrderFollower
from p2prl.net.process.passing_port import PassingPort


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
