"""Signals pass between a node and its role as they are: no file between the two knows one of them by name."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from p2prl.net.process import bridge, control
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import seal
from p2prl.protocol.kinds import Role
from p2prl.protocol.ledger_messages import StorageReceipt
from p2prl.sim.machines import identity_of
from p2prl.swarm import signals
from p2prl.swarm.node import Node
from p2prl.swarm.node_config import NodeConfig
from p2prl_lab.sim.memory_blobs import MemoryBlobs

ORDERS = get_args(signals.NodeOrder)
REPORTS = get_args(signals.NodeReport)
NOW = 1_800_000_000.0
ME = identity_of("me")
RUN = Digest(bytes(32))


def made(kind: type[signals.Signal]) -> Any:
    """A signal of this kind, with a value in each field."""
    values: dict[Any, Any] = {int: 7, bool: True, str: ME.peer_id, bytes: b"\x01" * 32}
    values |= {tuple[bytes, ...]: (b"entry",), tuple[tuple[bytes, float], ...]: ((ME.public_key, 0.5),)}
    return kind(*(values[field.type] for field in msgspec.structs.fields(kind)))


def unpacked(message: bytes) -> bytes:
    return message[control.LENGTH.size :]


def no_status() -> control.Status:
    raise AssertionError("a report needs no status")


@pytest.mark.parametrize("kind", REPORTS)
def test_a_report_reaches_the_role_as_it_is(kind: type[signals.Signal]) -> None:
    report = made(kind)
    message = bridge.message_of(report, path_of=lambda root: Path(root.hex()), status=no_status)
    assert message is report
    assert control.parse_from_network(unpacked(control.pack(message))) == report


@pytest.mark.parametrize("kind", ORDERS)
def test_an_order_reaches_the_node_as_it_is_and_is_ignored_too_early(kind: type[signals.Signal]) -> None:
    order = made(kind)
    if isinstance(order, signals.Publish):
        order = signals.Publish(seal(ME, StorageReceipt(()), run=RUN, now=NOW))
    assert control.parse_to_network(unpacked(control.pack(order))) == order
    node = Node(ME, RUN, MemoryBlobs(), random.Random(1), NodeConfig(role=Role.VALIDATOR), NOW)
    assert node.order(order, NOW) is None


def test_every_signal_is_an_order_or_a_report() -> None:
    kinds = {kind for kind in vars(signals).values() if isinstance(kind, type) and issubclass(kind, signals.Signal)}
    assert kinds - {signals.Signal, signals.Report} == {*ORDERS, *REPORTS}
    assert all(issubclass(kind, signals.Report) for kind in REPORTS)
    assert not any(issubclass(kind, signals.Report) for kind in ORDERS)


def test_an_envelope_that_nobody_would_accept_is_refused_with_its_reason() -> None:
    node = Node(ME, RUN, MemoryBlobs(), random.Random(1), NodeConfig(role=Role.VALIDATOR), NOW)
    other = seal(identity_of("other"), StorageReceipt(()), run=RUN, now=NOW)
    refused = node.order(signals.Publish(other), NOW)
    assert isinstance(refused, signals.PublishRefused)
    assert "only its own envelopes" in refused.reason
