"""Settings for every test: compiled modules, generous timeouts, the fast selection, and the split over workers."""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist import is_xdist_worker
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.strict_skips import pytest_addoption, pytest_sessionfinish, pytest_terminal_summary

__all__ = ["pytest_addoption", "pytest_sessionfinish", "pytest_terminal_summary"]  # hooks that stand beside their list

# Hundreds of processes import the program: none of them compiles it again, whatever the caller's environment says.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# As many workers as cores at least: a second thread of torch's would only spin beside another worker's.
os.environ.setdefault("OMP_NUM_THREADS", "1")

_MEMORY, _MEMORY_BYTES = Path("/dev/shm"), 4 * 2**30
if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES:
    # Databases and files are written through to the disk thousands of times: in memory that takes no time.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))

# The duration of an example depends on the machine's load; each test has its own timeout.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

SLOW = (
    "loopback/",
    "sim/",
    "property/test_patches_words.py",
    "unit/bench/",
    "unit/cli/commands/test_export_run.py",
    "unit/confinement/test_package_folders.py",
    "unit/confinement/test_probes.py",
    "unit/cli/test_metrics_glossary.py",
    "unit/house/test_examples.py",
    "unit/house/test_laboratory.py",
    "unit/house/test_light_distribution.py",
    "unit/house/test_packaging.py",
    "unit/index/test_listing_spam.py",
    "unit/index/test_run_choice.py",
    "unit/lab/bench/",
    "unit/lab/testing/",
    "unit/learner/test_crash_recovery.py",
    "unit/models/self_test/test_golden_shapes.py",
    "unit/models/engines/vllm/test_vllm_sampler.py",
    "unit/models/small_models/test_warm_start.py",
    "unit/tasks/sandbox/test_hostile_answers.py",
    "unit/tasks/sandbox/test_pool",
    "unit/testing/",
)
"""Folders and files whose tests start processes, train, simulate or build for seconds: left out by `make test-fast`."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Called by pytest: collect without the garbage collector, and leave what was collected out of its rounds.

    Ten thousand tests and their modules live to the end. Looking through them again and again takes a fifth of the
    time of collecting them, and most of a second for each full round during the tests.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Called by pytest: mark the slow tests, leave those of vLLM to the environment that has it, and swarms first."""
    if importlib.util.find_spec("vllm") is None:
        elsewhere = [item for item in items if item.get_closest_marker("vllm")]
        config.hook.pytest_deselected(items=elsewhere)
        items[:] = [item for item in items if item not in elsewhere]
    root = Path(__file__).parent
    for item in items:
        if item.path.relative_to(root).as_posix().startswith(SLOW):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: not _has_swarms(item.nodeid))


_SWARM_ROW, _WARM_ROW, _KERNEL_ROW = "swarms", "swarms from the warm run", "compiled kernels"

_SWARMS = frozenset(
    (
        *("bad_input", "bad_peers", "base", "data_task", "demo", "owner_controls"),
        "many_neighbors",  # a thousand greetings in one moment need half a core at least: after the other row
    )
)
"""Tests of tests/loopback that start swarms of whole roles, in two rows with those of the warm run: more than two would
starve each other. The other tests there need less of a core."""

_KERNELS = ("p2prl.patches.kernel_choice", "p2prl_lab.testing.patch_properties", "p2prl_lab.bench.patch.benchmark")
"""Modules by which a test runs the kernels that numba compiles."""

_BEHIND_SWARMS = 3
"""Niceness of a worker that begins with other tests than swarms: those wait on each other under limits of time."""

_RANKED = pytest.StashKey[bool]()
_FILE = pytest.StashKey[Path]()


@functools.cache
def _row(path: str) -> str:
    """A file, or the row of files that one worker takes: each other worker would make the warm run again, which takes
    minutes, or compile the kernels of patches again, which takes ten seconds."""
    text = (Path(__file__).parents[1] / path).read_text()
    if "warm_run: Path" in text:
        return _WARM_ROW
    if any(f"{module} import" in text for module in _KERNELS):
        return _KERNEL_ROW
    return _SWARM_ROW if path.removeprefix("tests/loopback/test_").removesuffix(".py") in _SWARMS else path


def _has_swarms(nodeid: str) -> bool:
    return _row(_path(nodeid)) in (_SWARM_ROW, _WARM_ROW)


def _path(nodeid: str) -> str:
    return nodeid.partition("::")[0]


class _SwarmsInRows(LoadScopeScheduling):  # type: ignore[misc]
    """Two workers begin with a row of swarms each, as these wait much of their time; the rest is dealt out by file."""

    def _split_scope(self, nodeid: str) -> str:
        return _row(_path(nodeid))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Called by pytest: at a worker's first test, step back behind the swarms if it is none of theirs.

    At the first test of a file, what files before it have imported and compiled is left out of the garbage collector's
    rounds as well: engines that are freed start a full one, which would take most of a second.
    """
    if item.config.stash.get(_FILE, None) != item.path:
        item.config.stash[_FILE] = item.path
        gc.collect()
        gc.freeze()
    if is_xdist_worker(item) and _RANKED not in item.config.stash:
        item.config.stash[_RANKED] = True
        if not _has_swarms(item.nodeid):
            os.nice(_BEHIND_SWARMS)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Called by pytest-xdist."""
    config.option.loadscopereorder = False  # it would start with the many small tests and finish with the long ones
    return _SwarmsInRows(config, log)
