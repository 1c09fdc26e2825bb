"""The draw of a slot over the versions that its volunteer can pick from."""

from __future__ import annotations

from p2prl.protocol.manifests import TaskShare
from p2prl.protocol.work_slots import VERSIONS_PER_BEACON, SlotKey, begins_beacon, slot_work


def test_all_versions_of_a_beacon_period_have_one_draw_of_a_slot() -> None:
    """A volunteer that samples a slot under each version it can get finds one prompt and one noise in a period."""
    drawn, beacon = [], b""
    for version in range(3 * VERSIONS_PER_BEACON):
        if begins_beacon(version):
            beacon = bytes((version // VERSIONS_PER_BEACON,)) * 32
        key = SlotKey(run=b"r" * 32, beacon=beacon, peer=b"k" * 32, slot=7)
        drawn.append(slot_work(key, [TaskShare("sort", 1.0)], 2))
    assert [len(set(drawn[start : start + 64])) for start in (0, 64, 128)] == [1, 1, 1]
    assert len(set(drawn)) == 3
