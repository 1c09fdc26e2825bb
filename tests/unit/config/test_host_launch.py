"""A launch by torchrun is read from its environment."""

from __future__ import annotations

import pytest

from p2prl.config.host_launch import HostLaunch

LAUNCHED = {"TORCHELASTIC_RUN_ID": "none", "RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}


def test_a_process_knows_its_place() -> None:
    assert HostLaunch.of(LAUNCHED) == HostLaunch(rank=3, ranks=4, hosts=2)
    assert HostLaunch.of({**LAUNCHED, "LOCAL_WORLD_SIZE": "4"}) == HostLaunch(rank=3, ranks=4, hosts=1)


@pytest.mark.parametrize("environment", [{}, {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}])
def test_no_launch_is_found_where_torchrun_made_none(environment: dict[str, str]) -> None:
    assert HostLaunch.of(environment) is None
