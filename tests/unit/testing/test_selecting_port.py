"""A selecting volunteer delivers one group of eight, the one it chooses, and nothing else changes."""

from __future__ import annotations

import random

import msgspec
import pytest

from p2prl.net.process import control
from p2prl.protocol.envelope import seal
from p2prl.protocol.rollout_group import Completion
from p2prl.sim.selecting_port import CHOICES, STRETCH, selecting
from p2prl.swarm import signals
from p2prl_lab.testing.protocol_swarm import group_of
from tests.unit.learner.small_run import NOW, identity

ME = identity("chooser")


class Port:
    addresses = ("/ip4/127.0.0.1/tcp/1",)
    status = None

    def __init__(self) -> None:
        self.sent: list[control.ToNetwork] = []
        self.arrived: list[control.FromNetwork] = []
        self.closed = self.woken = False

    def send(self, message: control.ToNetwork) -> None:
        self.sent.append(message)

    def poll(self, timeout_s: float) -> list[control.FromNetwork]:
        return self.arrived

    def wake(self) -> None:
        self.woken = True

    def close(self) -> None:
        self.closed = True


def groups(count: int) -> list[tuple[float, int, int, bytes]]:
    """(reward, bytes of tokens, slot, envelope) of some groups."""
    rng, made = random.Random(3), []
    for slot in range(count):
        reward, tokens = rng.random(), 1 + rng.randrange(100)
        completion = Completion(bytes(4 * tokens), bytes(2 * tokens), True, reward)
        group = msgspec.structs.replace(group_of(slot), completions=(completion,))
        made.append((reward, tokens, slot, seal(ME, group, run=bytes(32), now=NOW)))
    return made


@pytest.mark.parametrize(
    ("name", "place", "sign"),
    [
        ("lowest-reward", 0, 1),
        ("highest-reward", 0, -1),
        ("shortest", 1, 1),
        ("longest", 1, -1),
        ("every-eighth", 2, 1),
    ],
)
def test_one_of_eight_is_delivered(name: str, place: int, sign: int) -> None:
    port, made = Port(), groups(4 * STRETCH + 3)
    chooser = selecting(name)(port)
    for _ in range(3):  # as a spool does
        for entry in made[: 4 * STRETCH]:
            chooser.send(signals.Publish(entry[-1]))
    expected = [
        min(made[start : start + STRETCH], key=lambda entry: sign * entry[place])[-1]
        for start in range(0, 4 * STRETCH, STRETCH)
    ]
    sent = [message.envelope for message in port.sent if isinstance(message, signals.Publish)]
    assert sent == 3 * expected
    assert chooser.withheld == 4 * (STRETCH - 1)
    for entry in made[4 * STRETCH :]:
        chooser.send(signals.Publish(entry[-1]))
    assert len(port.sent) == len(sent), "not decided yet"
    assert set(CHOICES) >= {name}


def test_everything_else_passes() -> None:
    port = Port()
    chooser = selecting("longest")(port)
    chooser.send(signals.AskLedger(3))
    port.arrived.append(control.FileReady("config.json", "/nowhere"))
    assert port.sent == [signals.AskLedger(3)]
    assert chooser.poll(0.0) == port.arrived
    assert (chooser.addresses, chooser.status) == (port.addresses, None)
    chooser.wake()
    chooser.close()
    assert port.woken
    assert port.closed
