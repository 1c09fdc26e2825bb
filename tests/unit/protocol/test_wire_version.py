"""The wire version: equal ones work together, and only a larger one is a reason to update."""

from __future__ import annotations

import pytest

from p2prl.protocol.wire_version import WIRE_VERSION, is_newer, is_spoken


@pytest.mark.parametrize(("step", "spoken", "newer"), [(-1, False, False), (0, True, False), (1, False, True)])
def test_versions(step: int, spoken: bool, newer: bool) -> None:
    assert (is_spoken(WIRE_VERSION + step), is_newer(WIRE_VERSION + step)) == (spoken, newer)
