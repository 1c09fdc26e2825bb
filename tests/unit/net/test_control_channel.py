"""The role's end of the control socket: a large message goes out while its role computes, and the order is kept."""

from __future__ import annotations

import queue
import socket

from p2prl.net.process import control
from p2prl.net.process.control_channel import ControlChannel
from p2prl.swarm import signals


def test_a_large_message_leaves_without_further_calls() -> None:
    ours, theirs = socket.socketpair()
    channel = ControlChannel(ours, lambda _: None)
    sent: list[control.ToNetwork] = [
        signals.Publish(b"before"),
        signals.HoldGroup(bytes(32), bytes(range(256)) * 40_000),
        signals.Publish(b"after"),
    ]
    for message in sent:
        channel.send(message)  # from here on the role calls nothing
    theirs.settimeout(30.0)
    with theirs.makefile("rb") as stream:
        for message in sent:
            (size,) = control.LENGTH.unpack(stream.read(control.LENGTH.size))
            assert control.parse_to_network(stream.read(size)) == message
    channel.flush()  # waits for the sending thread
    assert not channel.has_waiting
    channel.hang_up(timeout_s=1.0)
    channel.join(5.0)
    theirs.close()


def test_a_closed_socket_drops_what_is_left() -> None:
    ours, theirs = socket.socketpair()
    ended: queue.SimpleQueue[control.FromNetwork | None] = queue.SimpleQueue()
    channel = ControlChannel(ours, ended.put)
    channel.send(signals.HoldGroup(bytes(32), bytes(8_000_000)))
    theirs.close()
    assert ended.get(timeout=30.0) is None
    channel.send(signals.Publish(b"to nobody"))
    channel.abandon()
    channel.join(5.0)
