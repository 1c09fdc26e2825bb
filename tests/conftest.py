"""Settings for every test: compiled modules, generous timeouts, the fast selection, and the split over two workers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# Hundreds of processes import the program: none of them compiles it again, whatever the caller's environment says.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Two workers on two cores: a second thread of torch's would only spin beside the other worker's.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The duration of an example depends on the machine's load; each test has its own timeout.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

SLOW = (
    "loopback/",
    "sim/",
    "property/test_patches_words.py",
    "unit/bench/",
    "unit/cli/commands/test_export_run.py",
    "unit/confinement/test_probes.py",
    "unit/cli/test_metrics_glossary.py",
    "unit/house/test_examples.py",
    "unit/house/test_light_distribution.py",
    "unit/house/test_packaging.py",
    "unit/learner/test_crash_recovery.py",
    "unit/models/test_vllm_sampler.py",
    "unit/models/test_warm_start.py",
    "unit/tasks/sandbox/test_hostile_answers.py",
    "unit/tasks/sandbox/test_pool",
    "unit/testing/",
)
"""Folders and files whose tests start processes, train, simulate or build for seconds: left out by `make test-fast`."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Called by pytest: mark the slow tests."""
    root = Path(__file__).parent
    for item in items:
        if item.path.relative_to(root).as_posix().startswith(SLOW):
            item.add_marker(pytest.mark.slow)


class _SwarmsInOneRow(LoadScopeScheduling):  # type: ignore[misc]
    """One worker takes the swarms of processes, which would starve each other; the other takes the rest, by file."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return "swarms" if "/loopback/" in path else path


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Called by pytest-xdist."""
    config.option.loadscopereorder = False  # it would start with the many small tests and finish with the long ones
    return _SwarmsInOneRow(config, log)
