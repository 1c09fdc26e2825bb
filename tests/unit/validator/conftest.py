"""A small run for the tests of the validator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.learner.small_run import SmallRun


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SmallRun]:
    made = SmallRun(tmp_path)
    yield made
    made.close()
