"""What a worker's options become in its network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from p2prl.config.home import Seat, take_seat
from p2prl.config.peers import UploadCaps, peer_network
from p2prl.errors import ConfigError
from p2prl.protocol.digests import Digest
from p2prl.protocol.link import JoinLink
from p2prl.protocol.messages import Role

LINK = JoinLink("unit", Digest(bytes(32)), ())


@pytest.fixture
def seat(tmp_path: Path) -> Iterator[Seat]:
    taken = take_seat(tmp_path)
    yield taken
    taken.release()


def test_a_disk_cap_is_in_bytes_and_none_is_none(seat: Seat) -> None:
    assert peer_network(LINK, seat, Role.VOLUNTEER, ()).disk_bytes == 0
    assert peer_network(LINK, seat, Role.VOLUNTEER, (), disk_gb=1.5).disk_bytes == 1_500_000_000


@pytest.mark.parametrize("role", [Role.VOLUNTEER, Role.VALIDATOR, Role.SEEDER])
def test_whoever_keeps_weights_makes_them_of_patches(seat: Seat, role: Role) -> None:
    assert peer_network(LINK, seat, role, ()).rebuilds


def test_only_a_worker_with_a_base_keeps_its_network_waiting(seat: Seat) -> None:
    assert peer_network(LINK, seat, Role.VOLUNTEER, (), has_base=True).awaits_base
    assert not peer_network(LINK, seat, Role.VOLUNTEER, ()).awaits_base


@pytest.mark.parametrize("role", [Role.VOLUNTEER, Role.VALIDATOR, Role.SEEDER])
def test_upload_caps_reach_the_network_in_bytes(seat: Seat, role: Role) -> None:
    capped = peer_network(LINK, seat, role, (), UploadCaps(upload_mbit=8.0, monthly_gb=0.5))
    assert (capped.upload_bytes_s, capped.monthly_bytes) == (1_000_000.0, 500_000_000)
    free = peer_network(LINK, seat, role, ())
    assert (free.upload_bytes_s, free.monthly_bytes) == (0.0, 0)


@pytest.mark.parametrize("disk_gb", [-1.0, float("nan"), float("inf")])
def test_an_impossible_cap_names_its_option(seat: Seat, disk_gb: float) -> None:
    with pytest.raises(ConfigError, match="--disk-gb"):
        peer_network(LINK, seat, Role.VOLUNTEER, (), disk_gb=disk_gb)
