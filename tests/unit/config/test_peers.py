"""What a worker's options become in its network."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2prl.config.home import take_seat
from p2prl.config.peers import peer_network
from p2prl.errors import ConfigError
from p2prl.protocol.digests import Digest
from p2prl.protocol.link import JoinLink
from p2prl.protocol.messages import Role

LINK = JoinLink("unit", Digest(bytes(32)), ())


def test_a_disk_cap_is_in_bytes_and_none_is_none(tmp_path: Path) -> None:
    seat = take_seat(tmp_path)
    assert peer_network(LINK, seat, Role.VOLUNTEER, ()).disk_bytes == 0
    assert peer_network(LINK, seat, Role.VOLUNTEER, (), disk_gb=1.5).disk_bytes == 1_500_000_000
    assert peer_network(LINK, seat, Role.VOLUNTEER, ()).rebuilds
    assert not peer_network(LINK, seat, Role.SEEDER, ()).rebuilds


@pytest.mark.parametrize("disk_gb", [-1.0, float("nan"), float("inf")])
def test_an_impossible_cap_names_its_option(tmp_path: Path, disk_gb: float) -> None:
    with pytest.raises(ConfigError, match="--disk-gb"):
        peer_network(LINK, take_seat(tmp_path), Role.VOLUNTEER, (), disk_gb=disk_gb)
