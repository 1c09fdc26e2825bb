"""What holds for every test: patience with slow machines, and who runs what when several workers do (`pytest -n 2`)."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# How long an example takes depends on what else the machine does; each test has a timeout of its own.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


class _SwarmsInOneRow(LoadScopeScheduling):  # type: ignore[misc]
    """One worker takes the swarms of processes, which would starve each other; the other takes the rest, by file."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return "swarms" if "/loopback/" in path else path


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Called by pytest-xdist."""
    config.option.loadscopereorder = False  # it would begin with the many small tests and end with the long ones
    return _SwarmsInOneRow(config, log)
