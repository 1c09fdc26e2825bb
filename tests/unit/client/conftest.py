"""The volunteer under test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.client.volunteer_rig import VolunteerRig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[VolunteerRig]:
    made = VolunteerRig(tmp_path)
    yield made
    made.close()
