"""Settings of all tests: no deadline for slow machines, and scheduling over several workers (`pytest -n 2`)."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# The duration of an example depends on the machine's load; each test has its own timeout.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


class _SwarmsInOneRow(LoadScopeScheduling):  # type: ignore[misc]
    """One worker takes the swarms of processes, which would starve each other; the other takes the rest, by file."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return "swarms" if "/loopback/" in path else path


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Called by pytest-xdist."""
    config.option.loadscopereorder = False  # it would start with the many small tests and finish with the long ones
    return _SwarmsInOneRow(config, log)
