"""Delayed port: each group arrives once, after its delay in other groups; everything else passes at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from p2prl.net.process import control
from p2prl.protocol.envelope import open_envelope, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.ledger_messages import LedgerHead
from p2prl.swarm import signals
from p2prl_lab.testing.delayed_port import DelayedPort
from p2prl_lab.testing.protocol_swarm import group_of

KEY = Identity(bytes(16))
GROUPS = [seal(KEY, group_of(slot), run=bytes(32), now=1e9) for slot in range(30)]
HEAD = seal(KEY, LedgerHead(0, bytes(32), 0, False), run=bytes(32), now=1e9)


class InboxPort:
    """A port that delivers the messages a test puts in."""

    addresses = ("/ip4/127.0.0.1/tcp/1",)
    status = None

    def __init__(self) -> None:
        self.inbox: list[control.FromNetwork] = []
        self.sent: list[control.ToNetwork] = []
        self.closed = False

    def send(self, message: control.ToNetwork) -> None:
        self.sent.append(message)

    def poll(self, timeout_s: float) -> list[control.FromNetwork]:
        messages, self.inbox = self.inbox, []
        return messages

    def wake(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def slots(messages: list[control.FromNetwork]) -> list[int]:
    return [open_envelope(m.envelope, now=None).body.slot for m in messages if isinstance(m, control.EnvelopeArrived)]  # type: ignore[attr-defined]


delay_lists = st.lists(st.integers(min_value=0, max_value=12), min_size=30, max_size=30)


@given(delay_lists, st.integers(min_value=1, max_value=7))
def test_a_group_is_delivered_once_after_its_delay(delays: list[int], burst: int) -> None:
    line = InboxPort()
    drawn = iter(delays)
    late = DelayedPort(line, lambda: next(drawn))
    came: dict[int, int] = {}
    for start in range(0, 30, burst):
        line.inbox = [control.EnvelopeArrived(raw) for raw in GROUPS[start : start + burst]]
        for slot in slots(late.poll(0.0)):
            assert slot not in came
            came[slot] = min(30, start + burst)
    for slot, delay in enumerate(delays):
        due = slot + 1 + delay  # groups that must have arrived, its own included
        if due > 30:
            assert slot not in came
        else:
            assert came[slot] - burst < due <= came[slot]
    assert late.held == 30 - len(came)


def test_a_group_offered_again_is_not_held_again() -> None:
    line = InboxPort()
    late = DelayedPort(line, lambda: 2)
    line.inbox = [control.EnvelopeArrived(GROUPS[0])] * 5
    assert late.poll(0.0) == []
    assert late.held == 1
    line.inbox = [control.EnvelopeArrived(GROUPS[1]), control.EnvelopeArrived(GROUPS[2])]
    assert slots(late.poll(0.0)) == [0]
    line.inbox = [control.EnvelopeArrived(GROUPS[0])]
    assert slots(late.poll(0.0)) == [0], "its receipt was lost: the learner must hear of it again at once"


def test_everything_else_passes_at_once_and_in_order() -> None:
    line = InboxPort()
    late = DelayedPort(line, lambda: 5)
    others: list[control.FromNetwork] = [
        control.EnvelopeArrived(HEAD),
        signals.VersionAnnounced(1, 1),
        signals.LedgerWanted("peer", 0),
    ]
    line.inbox = [others[0], control.EnvelopeArrived(GROUPS[0]), *others[1:]]
    assert late.poll(0.0) == others
    late.send(signals.SetLedgerHeight(3))
    late.close()
    assert (line.sent, line.closed, late.addresses) == ([signals.SetLedgerHeight(3)], True, line.addresses)
