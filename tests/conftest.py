"""How the tests are shared out when several workers run them (`pytest -n 2`)."""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling


class _SwarmsInOneRow(LoadScopeScheduling):  # type: ignore[misc]
    """One worker takes the swarms of processes, which would starve each other; the other takes the rest, by file."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return "swarms" if "/loopback/" in path else path


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Called by pytest-xdist."""
    config.option.loadscopereorder = False  # it would begin with the many small tests and end with the long ones
    return _SwarmsInOneRow(config, log)
