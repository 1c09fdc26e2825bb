"""A launch by torchrun is read from its environment."""

from __future__ import annotations

import pytest

from p2prl.config.host_launch import HostLaunch
from p2prl.errors import ConfigError

LAUNCHED = {"TORCHELASTIC_RUN_ID": "none", "RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}


def test_a_process_knows_its_place() -> None:
    found = HostLaunch.of(LAUNCHED)
    assert found == HostLaunch(rank=3, ranks=4, ranks_here=2)
    assert found.hosts == 2
    alone = HostLaunch.of({**LAUNCHED, "LOCAL_WORLD_SIZE": "4"})
    assert alone is not None
    assert alone.hosts == 1


@pytest.mark.parametrize("environment", [{}, {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}])
def test_no_launch_is_found_where_torchrun_made_none(environment: dict[str, str]) -> None:
    assert HostLaunch.of(environment) is None


def test_a_plan_of_other_ranks_is_refused() -> None:
    launch = HostLaunch(rank=0, ranks=4, ranks_here=2)
    launch.check("dp2pp2", 4)
    with pytest.raises(ConfigError, match="torchrun started 4 processes, and plan dp2 has 2"):
        launch.check("dp2", 2)
