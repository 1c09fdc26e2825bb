"""Control messages: a node's settings reach its network process unchanged."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from p2prl.net.process import control
from p2prl.net.process.network_config import NetworkConfig
from p2prl.protocol.kinds import Role
from p2prl.swarm import signals
from p2prl.swarm.node_config import NodeConfig
from p2prl.swarm.relay.relay_config import RelayConfig

CONFIG = NetworkConfig(
    key_file=Path("/worker/key.json"),
    run=bytes(range(32)),
    node=NodeConfig(
        role=Role.VALIDATOR,
        keep_versions=7,
        awaits_base=True,
        disk_bytes=10**12,
        relay=RelayConfig(upload_bytes_s=2.5e6),
    ),
    blob_dir=Path("/worker/blobs"),
    bootstrap=("/ip4/127.0.0.1/tcp/1/p2p/x",),
    manifest=b"envelope",
    monthly_bytes=10**15,
    transport="libp2p",
)


def test_start_carries_every_setting() -> None:
    start = control.Start(CONFIG, seed=2**55)
    packed = control.pack(start)
    (size,) = control.LENGTH.unpack(packed[: control.LENGTH.size])
    assert size == len(packed) - control.LENGTH.size
    assert control.parse_to_network(packed[control.LENGTH.size :]) == start


def test_upload_caps_reach_the_network_process() -> None:
    caps = control.SetUploadCaps(625_000.0, 50 * 10**9)
    assert control.parse_to_network(control.pack(caps)[control.LENGTH.size :]) == caps


@pytest.mark.parametrize(
    ("remedy", "text"), [("Free some space.", "the disk is full. Free some space."), ("", "the disk is full.")]
)
def test_a_warning_reads_as_sentences(remedy: str, text: str) -> None:
    assert control.Warned("the disk is full", remedy).text == text


def test_a_message_of_the_other_direction_is_refused() -> None:
    body = control.pack(control.Start(CONFIG, seed=1))[control.LENGTH.size :]
    with pytest.raises(msgspec.ValidationError):
        control.parse_from_network(body)


def test_only_paths_get_a_special_encoding() -> None:
    with pytest.raises(NotImplementedError):
        control.pack(signals.Publish(object()))  # type: ignore[arg-type]
