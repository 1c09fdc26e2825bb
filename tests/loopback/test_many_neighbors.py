"""A node that a thousand neighbors greet in one moment, over real sockets with a stub for the daemon."""

from __future__ import annotations

import asyncio
from pathlib import Path

from p2prl_lab.many_neighbors import measure

NEIGHBORS = 1_024


def test_no_frame_and_no_link_is_lost(tmp_path: Path) -> None:
    """Eight seconds: that many neighbors cannot be tried faster, and fewer do not fill the sockets' queues."""
    report = asyncio.run(measure(NEIGHBORS, 4.0, tmp_path))
    assert report["linked_s"] is not None, report
    assert report["links"] == NEIGHBORS
    assert report["links_lost"] == report["frames_lost"] == 0
    assert report["frames_sent"] >= 2 * NEIGHBORS, "greeted at once, and again for each version"
